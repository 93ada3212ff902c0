"""Runs of the real engine, and the simulations that repeat them with their measured step times; needs torch."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from engine.api.llm_engine import LLMEngine
from engine.api.step_report import StepReport
from engine.core.decodes.interface import Decodes
from engine.core.decodes.ragged import RaggedDecodes
from engine.core.decodes.uniform import UniformDecodes
from engine.core.hashing import extend_hashes
from engine.core.kv.reserved.reservation import Contiguous
from engine.core.kv.tiers.tier import DEVICE
from engine.core.plan import StepPlan
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions
from engine.core.sequence import Request, Sequence
from engine.core.work import StepWork
from engine.engine_config import EngineConfig
from engine.models.model_config import ModelConfig
from engine.prompt_lookup import NgramOptions
from engine.runner.cache.kv_cache import GIB
from engine.runner.executors.executor import LocalExecutor
from engine.sampling_params import SamplingParams
from harness.engines.real_replay import Intake, Replay
from harness.record.issued import Issued
from harness.record.record import Record, RecordedRun
from harness.record.recorder import Recorder
from harness.workload.arrivals import OpenLoop
from harness.workload.token_ids import PromptSource
from harness.workload.trace import Trace, trace_table
from simulator.arrivals import NEVER
from simulator.fleets.fleet import Fleet
from simulator.replica import Replica
from tests.compiled import Overlaid
from tests.policies import ON_ANY_POOL, SGLANG, TRTLLM

SHAPE = {
    "name": "twin", "num_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "num_kv_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": 300, "tie_word_embeddings": False, "max_position_embeddings": 512,
    "dtype": "float32", "num_experts": 0, "num_experts_per_token": 0, "moe_intermediate_size": 0,
}  # fmt: skip
BLOCK_SIZE = 4
BLOCK_BYTES = 2 * BLOCK_SIZE * 2 * 16 * 4
HOST_BLOCKS = 20
GB_PER_S = 1.0
LIMITS: dict[str, Any] = {"max_num_seqs": 6, "max_num_batched_tokens": 48}
DECISIONS = [
    "num_prefill_seqs", "num_decode_seqs", "num_prefill_tokens", "num_context_tokens", "num_running", "num_waiting",
    "num_used_blocks", "num_saved_blocks", "num_preempted", "num_first_admitted_tokens", "num_cached_tokens",
    "num_kv_tokens", "num_reserved_slots", "num_external_slots", "num_padding_tokens", "start_time", "duration",
    "num_blocks_out", "num_blocks_in", "num_blocks_to_disk", "num_blocks_from_disk",
]  # fmt: skip


class LoggingRecorder(Overlaid):
    """A recorder that keeps when each request was issued, how long each plan took, and every token."""

    def __init__(self, *, reserves: bool = False) -> None:
        self.recorder = Recorder(reserves=reserves)
        super().__init__(self.recorder)
        self.record_spans()
        self.issued: list[tuple[int, int]] = []
        self.durations: list[int] = []
        self.requests: dict[int, Request] = {}
        self.num_tokens: dict[int, list[int]] = {}  # how many each request knows after each of its steps

    def on_issued(self, issued: Issued, now_ns: int) -> None:
        self.recorder.on_issued(issued, now_ns)
        assert issued.arrival_ns <= issued.issued_ns <= now_ns
        while_idle = issued.issued_ns > self.now_ns  # then it takes the engine a moment to wake up
        self.issued.append((now_ns if while_idle else issued.issued_ns, issued.row))

    def on_report(self, report: StepReport) -> None:
        self.recorder.on_report(report)
        self.durations.append(report.end_ns - report.start_ns)
        for new in report.outputs:
            known = self.num_tokens.setdefault(new.sequence.request_id, [new.sequence.request.num_prompt_tokens])
            known.append(known[-1] + len(new.token_ids))
        self.requests |= {request.request_id: request for request in report.outcome.finished}


class MeasuredCost:
    """Hands out the measured durations, one per plan, in order, shared among its steps as they are recorded."""

    def __init__(self, durations: list[int]) -> None:
        self._left = iter(durations)
        self._last = 0

    def step_ns(self, work: StepWork) -> int:
        self._last = next(self._left)
        return self._last

    def decode_ns(self, work: StepWork, num_steps: int) -> Any:
        each, rest = divmod(self._last, num_steps)
        return each + (np.arange(num_steps) < rest)


class WithTheStep:
    """On the CPU all copies of a plan end while it runs, and its measured time is with them."""

    def __init__(self, cost: MeasuredCost) -> None:
        self.next_ns = NEVER
        self._parked: list[tuple[int, Sequence]] = []
        self._cost = cost

    def start(self, plan: StepPlan, now_ns: int) -> int:
        """Those who are parked by a plan that copies nothing to the device wait for copies that have ended."""
        copies = any(each.target_tier == DEVICE != each.source_tier for each in plan.transfers)
        self._keep(self._parked + [(now_ns + copies, sequence) for sequence in plan.parked])
        return 0 if plan.num_decodes or plan.prefills else self._cost.step_ns(plan.work)

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        ready = [sequence for ready_at, sequence in self._parked if ready_at <= until_ns]
        self._keep([(ready_at, sequence) for ready_at, sequence in self._parked if ready_at > until_ns])
        return ready

    def _keep(self, parked: list[tuple[int, Sequence]]) -> None:
        self._parked = parked
        self.next_ns = min((ready_at for ready_at, _ in parked), default=NEVER)


def make_trace() -> Trace:
    rng = np.random.default_rng(0)
    n = 24
    prompts, outputs = rng.integers(4, 60, n), rng.integers(1, 34, n)
    hash_ids = [100 * (i % 3) + np.arange(-(-length // 8)) for i, length in enumerate(prompts)]
    columns = {"num_prompt_tokens": prompts, "num_output_tokens": outputs, "hash_ids": hash_ids}
    columns |= {"priority": np.arange(n) % 3, "tenant": np.arange(n) % 4, "deadline": rng.uniform(0, 0.2, n)}
    return Trace("t", trace_table(columns), "made", 8)


def make_intake(
    trace: Trace,
    options: SchedulerOptions,
    num_blocks: int,
    lookahead: int,
    offload: OffloadOptions | None = None,
    speculation: NgramOptions | None = None,
    contiguous: Contiguous | None = None,
) -> tuple[Intake, LoggingRecorder]:
    """A real engine that serves the requests of `trace`, and what records it."""
    config = EngineConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks, max_lookahead_steps=lookahead,
                          load_format="random", host_kv_gib=0 if contiguous else HOST_BLOCKS * BLOCK_BYTES / GIB,
                          host_gb_per_s=GB_PER_S, offload=offload is not None, contiguous=contiguous,
                          overlap=offload is None or offload.overlap, speculation=speculation, **LIMITS,
                          **asdict(options))  # fmt: skip
    executor = LocalExecutor(config, ModelConfig.from_shape(SHAPE))
    engine = LLMEngine(config, executor, max_model_len=512)
    recorder = LoggingRecorder(reserves=contiguous is not None)
    prompts = PromptSource(trace, 300, seed=0)
    intake = Intake(engine, prompts, recorder, lambda n: SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True))
    return intake, recorder


def run_real(trace: Trace, options: SchedulerOptions, num_blocks: int, *settings: Any, **more: Any) -> LoggingRecorder:
    """Serve `trace` in real time; the settings are those of `make_intake`."""
    intake, recorder = make_intake(trace, options, num_blocks, *settings, **more)
    times = np.arange(len(trace.table)) * 4_000_000
    times[12:] += 250_000_000  # the engine falls idle in between
    Replay(intake, OpenLoop(times)).run()
    check_ended(intake)
    return recorder


def run_paced(intake: Intake, recorder: LoggingRecorder, times: NDArray[np.int64], durations: list[int]) -> None:
    """Serve a trace whose requests come at `times` by a clock on which steps last so long; nothing is waited for."""
    arrivals, left = OpenLoop(times), iter(durations)
    now = arrivals.next_ns
    while True:
        for arrival, row in arrivals.pop_due(now):
            intake.hand_over(Issued(row, arrival, arrival), now)
        if (executed := intake.engine.execute(now)) is not None:
            now += sum(islice(left, executed.plan.num_steps))
            intake.commit(executed, now)
        elif arrivals.next_ns != NEVER:
            now = arrivals.next_ns
        else:
            break
    check_ended(intake)


def check_ended(intake: Intake) -> None:
    assert not intake.engine.scheduler.unfinished
    intake.engine.scheduler.check_integrity()
    intake.engine.close()


def assert_equal(real: LoggingRecorder, twin: Recorder, trace: Trace, *columns: str) -> RecordedRun:
    """Prove that both made the same plans, and that requests fared alike; returns the tables of the real run."""
    measured, simulated = (Record([each]).tables(trace, [[]]) for each in (real.recorder, twin))
    steps = [*DECISIONS, *columns]
    pd.testing.assert_frame_equal(measured.steps[steps], simulated.steps[steps], check_exact=True)
    others = [c for c in measured.requests if c != "replay_lag"]
    pd.testing.assert_frame_equal(measured.requests[others], simulated.requests[others], check_exact=True)
    assert measured.spans is not None and simulated.spans is not None
    pd.testing.assert_frame_equal(measured.spans, simulated.spans, check_exact=True)
    gaps = [np.sort(np.repeat(each.gaps.values, each.gaps.weights)) for each in (measured, simulated)]
    np.testing.assert_array_equal(gaps[0], gaps[1])
    return measured


def run_twin(
    real: LoggingRecorder,
    options: SchedulerOptions,
    num_blocks: int,
    lookahead: int,
    offload: OffloadOptions | None = None,
    num_drafts: int | None = None,
    contiguous: Contiguous | None = None,
) -> Recorder:
    """Simulate the same requests, which come when they were issued to the real engine, with the times of its plans, and
    drafts that are accepted as they were there."""

    def gained(sequence: Sequence) -> NDArray[np.int64]:
        known = np.array(real.num_tokens[sequence.request_id])
        return known[known >= sequence.num_tokens] - sequence.num_tokens

    def make_decodes(block_size: int, longest: int) -> Decodes:
        return (
            UniformDecodes(block_size) if num_drafts is None else RaggedDecodes(block_size, longest, num_drafts, gained)
        )

    scheduler = make_scheduler(
        options, num_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=512, offload=offload,
        num_host_blocks=0 if contiguous else HOST_BLOCKS, transfer_block_us=BLOCK_BYTES / (GB_PER_S * 1e3),
        contiguous=contiguous, make_decodes=make_decodes, **LIMITS,
    )  # fmt: skip

    def make(order: int, arrival_ns: int) -> Request:
        row = real.issued[order][1]
        before = real.requests[row]
        tokens = before.sequences[0].token_ids or []
        hashes: list[int] = []
        extend_hashes(hashes, tokens, BLOCK_SIZE, len(tokens) // BLOCK_SIZE)
        return Request(
            row, before.num_prompt_tokens, before.max_tokens, before.arrival_time, block_hashes=hashes,
            priority=before.priority, tenant=before.tenant, deadline=before.deadline,
            num_sequences=before.num_sequences,
        )  # fmt: skip

    recorder = Recorder(reserves=contiguous is not None)
    recorder.record_spans()
    arrivals = OpenLoop(np.array([now for now, _ in real.issued]))
    cost = MeasuredCost(real.durations)
    replica = Replica(
        scheduler, cost, recorder, compress=False, max_lookahead_steps=lookahead,
        transfers=WithTheStep(cost),
    )  # fmt: skip
    Fleet(arrivals, make, [replica]).run()
    return recorder


OPTIONS = {policy: SchedulerOptions(policy=policy) for policy in ON_ANY_POOL} | {
    "sglang": SGLANG,
    "trtllm": replace(TRTLLM, options={"capacity_scheduler_policy": "max_utilization"}),
}
OPTIONS["vllm"] = SchedulerOptions(
    watermark=0.0, allocation="chunk", eviction="lru", victim="last", full_hit="recompute_block"
)
OPTIONS |= {eviction: SchedulerOptions(eviction=eviction) for eviction in ("fifo", "lfu")}
