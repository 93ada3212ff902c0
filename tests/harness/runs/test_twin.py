"""The real engine and the simulator decide alike: a real run, simulated again with its measured step times."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import simpy

torch = pytest.importorskip("torch")

from numpy.typing import NDArray  # noqa: E402

from engine.core.decodes.interface import Decodes  # noqa: E402
from engine.core.decodes.ragged import RaggedDecodes  # noqa: E402
from engine.core.decodes.uniform import UniformDecodes  # noqa: E402
from engine.core.hashing import extend_hashes  # noqa: E402
from engine.core.kv.contiguous import Contiguous  # noqa: E402
from engine.core.plan import StepPlan  # noqa: E402
from engine.core.policies import POLICIES  # noqa: E402
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions, make_scheduler  # noqa: E402
from engine.core.sequence import Request, Sequence  # noqa: E402
from engine.core.work import StepWork  # noqa: E402
from engine.engine_config import EngineConfig  # noqa: E402
from engine.llm_engine import LLMEngine  # noqa: E402
from engine.models.model_config import ModelConfig  # noqa: E402
from engine.runner.executor import LocalExecutor  # noqa: E402
from engine.runner.kv_cache import GIB  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from engine.speculation import NgramOptions  # noqa: E402
from engine.step_report import StepReport  # noqa: E402
from harness.runs.recorder import Recorder  # noqa: E402
from harness.runs.replay import Intake, Issued, Replay  # noqa: E402
from harness.workload.arrivals import OpenLoop  # noqa: E402
from harness.workload.prompts import PromptSource  # noqa: E402
from harness.workload.trace import Trace, trace_table  # noqa: E402
from simulator.arrivals import NEVER  # noqa: E402
from simulator.replica import Replica  # noqa: E402
from simulator.router import RoundRobin  # noqa: E402

SHAPE = {
    "name": "twin", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_kv_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": 300, "tie_word_embeddings": False, "max_position_embeddings": 512,
    "dtype": "float32", "num_experts": 0, "num_experts_per_token": 0, "moe_intermediate_size": 0,
}  # fmt: skip
BLOCK_SIZE = 4
BLOCK_BYTES = 2 * 2 * BLOCK_SIZE * 2 * 16 * 4
HOST_BLOCKS = 20
GB_PER_S = 1.0
LIMITS: dict[str, Any] = {"max_num_seqs": 6, "max_num_batched_tokens": 48}
DECISIONS = [
    "num_prefill_seqs", "num_decode_seqs", "num_prefill_tokens", "num_context_tokens", "num_running", "num_waiting",
    "num_used_blocks", "num_saved_blocks", "num_preempted", "num_first_admitted_tokens", "num_cached_tokens",
    "num_kv_tokens", "num_reserved_slots", "num_external_slots", "start_time", "duration", "num_blocks_out",
    "num_blocks_in", "num_blocks_to_disk", "num_blocks_from_disk",
]  # fmt: skip


class LoggingRecorder(Recorder):
    """Keeps when each request was issued, how long each plan took, and every token."""

    def __init__(self, *, reserves: bool = False) -> None:
        super().__init__(reserves=reserves)
        self.issued: list[tuple[int, int]] = []
        self.durations: list[int] = []
        self.requests: dict[int, Request] = {}
        self.parents: dict[int, list[list[int]]] = defaultdict(list)
        self.num_tokens: dict[int, list[int]] = {}  # how many each request knows after each of its steps

    def on_issued(self, issued: Issued, now_ns: int) -> None:
        super().on_issued(issued, now_ns)
        assert issued.arrival_ns <= issued.issued_ns <= now_ns
        while_idle = issued.issued_ns > self.now_ns  # then it takes the engine a moment to wake up
        self.issued.append((now_ns if while_idle else issued.issued_ns, issued.row))

    def on_report(self, report: StepReport) -> None:
        super().on_report(report)
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
        self._parked: list[Sequence] = []
        self._cost = cost

    def start(self, plan: StepPlan, now_ns: int) -> int:
        self._parked += plan.parked
        if self._parked:
            self.next_ns = now_ns + 1
        return 0 if plan.num_decodes or plan.prefills else self._cost.step_ns(plan.work)

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        ready, self._parked, self.next_ns = self._parked, [], NEVER
        return ready


def make_trace() -> Trace:
    rng = np.random.default_rng(0)
    n = 24
    prompts, outputs = rng.integers(4, 60, n), rng.integers(1, 50, n)
    hash_ids = [100 * (i % 3) + np.arange(-(-length // 8)) for i, length in enumerate(prompts)]
    columns = {"num_prompt_tokens": prompts, "num_output_tokens": outputs, "hash_ids": hash_ids}
    columns |= {"priority": np.arange(n) % 3, "tenant": np.arange(n) % 4, "deadline": rng.uniform(0, 0.2, n)}
    return Trace("t", trace_table(columns), "made", 8)


def run_real(
    trace: Trace,
    options: SchedulerOptions,
    num_blocks: int,
    lookahead: int,
    offload: OffloadOptions | None = None,
    speculation: NgramOptions | None = None,
    contiguous: Contiguous | None = None,
) -> LoggingRecorder:
    config = EngineConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks, max_lookahead_steps=lookahead,
                          load_format="random", host_kv_gib=0 if contiguous else HOST_BLOCKS * BLOCK_BYTES / GIB,
                          host_gb_per_s=GB_PER_S, offload=offload is not None, contiguous=contiguous,
                          overlap=offload is None or offload.overlap, speculation=speculation, **LIMITS,
                          **asdict(options))  # fmt: skip
    executor = LocalExecutor(config, ModelConfig.from_shape(SHAPE))
    engine = LLMEngine(config, executor, max_model_len=512)
    recorder = LoggingRecorder(reserves=contiguous is not None)
    replace_beams = engine.scheduler.replace_beams

    def keep_parents(request: Request, parents: list[int]) -> None:
        recorder.parents[request.request_id].append(list(parents))
        replace_beams(request, parents)

    engine.scheduler.replace_beams = keep_parents  # type: ignore[method-assign,assignment]
    times = np.arange(len(trace.table)) * 4_000_000
    times[12:] += 250_000_000  # the engine falls idle in between
    prompts = PromptSource(trace, 300, seed=0)
    intake = Intake(engine, prompts, recorder, lambda n: SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True))
    Replay(intake, OpenLoop(times)).run()
    assert not engine.scheduler.unfinished
    engine.scheduler.check_integrity()
    return recorder


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
    env = simpy.Environment(initial_time=0)

    def gained(sequence: Sequence) -> NDArray[np.int64]:
        known = np.array(real.num_tokens[sequence.request_id])
        return known[known >= sequence.num_tokens] - sequence.num_tokens

    def make_decodes(block_size: int) -> Decodes:
        return UniformDecodes(block_size) if num_drafts is None else RaggedDecodes(block_size, num_drafts, gained)

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
            num_sequences=before.num_sequences, is_beam_search=before.is_beam_search,
        )  # fmt: skip

    def parents_of(request: Request) -> list[int]:
        return real.parents[request.request_id].pop(0)

    recorder = Recorder(reserves=contiguous is not None)
    arrivals = OpenLoop(np.array([now for now, _ in real.issued]))
    cost = MeasuredCost(real.durations)
    router = RoundRobin(arrivals, make)
    replica = Replica(
        env, scheduler, cost, router, recorder, compress=False, max_lookahead_steps=lookahead,
        transfers=WithTheStep(cost), choose_parents=parents_of,
    )  # fmt: skip
    router.connect(replica)
    env.run()
    return recorder


OPTIONS = {policy: SchedulerOptions(policy=policy) for policy in sorted(POLICIES)}
OPTIONS["vllm"] = SchedulerOptions(
    watermark=0.0, allocation="chunk", eviction="lru", victim="last", full_hit="recompute_block"
)
OPTIONS |= {eviction: SchedulerOptions(eviction=eviction) for eviction in ("fifo", "lfu")}


TOKENS: dict[int, list[int]] = {}  # of each request, generated in the first run
# With "auto", a block takes as long, out and back, as 3 of its 4 tokens.
PREEMPTIONS = {
    "partial": replace(OPTIONS["vllm"], preemption="partial"),
    "swap": replace(OPTIONS["mixed"], preemption="swap"),
    "auto": replace(OPTIONS["prefill_first"], preemption="auto", recompute_token_us=2e-3 * BLOCK_BYTES / 3),
}


@pytest.mark.parametrize("mode", PREEMPTIONS)
def test_the_simulator_repeats_what_preemptions_keep(mode: str) -> None:
    torch.set_num_threads(1)
    trace = make_trace()
    real = run_real(trace, PREEMPTIONS[mode], 40, 8)
    twin, measured = run_twin(real, PREEMPTIONS[mode], 40, 8).tables(trace, []), real.tables(trace, [])
    pd.testing.assert_frame_equal(measured.steps[DECISIONS], twin.steps[DECISIONS], check_exact=True)
    columns = [c for c in measured.requests if c != "replay_lag"]
    pd.testing.assert_frame_equal(measured.requests[columns], twin.requests[columns], check_exact=True)
    kept = measured.requests["num_partial_preemptions" if mode == "partial" else "num_swaps"].sum()
    assert 0 < kept <= measured.requests["num_preemptions"].sum() == measured.steps["num_preempted"].sum()
    moved = measured.steps[["num_blocks_out", "num_blocks_in"]].sum()
    assert moved.nunique() == 1 and (moved > 0).all() == (mode != "partial")
    assert (measured.steps["transfer_time"] > 0).equals(measured.steps["num_blocks_out"] > 0)


@pytest.mark.parametrize("overlap", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_simulator_repeats_hits_in_host_memory(overlap: bool) -> None:
    torch.set_num_threads(1)
    trace, options, offload = make_trace(), SchedulerOptions(), OffloadOptions(overlap=overlap)
    real = run_real(trace, options, 40, 1, offload)
    twin, measured = run_twin(real, options, 40, 1, offload).tables(trace, []), real.tables(trace, [])
    pd.testing.assert_frame_equal(measured.steps[DECISIONS], twin.steps[DECISIONS], check_exact=True)
    columns = [c for c in measured.requests if c != "replay_lag"]
    pd.testing.assert_frame_equal(measured.requests[columns], twin.requests[columns], check_exact=True)
    assert measured.steps["num_blocks_in"].sum() > 0
    assert (measured.requests["parked_time"] > 0).any() == overlap


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(("num_blocks", "lookahead"), [(40, 1), (40, 8), (400, 8)])
def test_the_simulator_repeats_a_real_run(name: str, num_blocks: int, lookahead: int) -> None:
    torch.set_num_threads(1)
    trace = make_trace()
    real = run_real(trace, OPTIONS[name], num_blocks, lookahead)
    twin = run_twin(real, OPTIONS[name], num_blocks, lookahead).tables(trace, [])
    measured = real.tables(trace, [])
    assert (len(real.durations) == len(measured.steps)) == (lookahead == 1)
    pd.testing.assert_frame_equal(measured.steps[DECISIONS], twin.steps[DECISIONS], check_exact=True)
    columns = [c for c in measured.requests if c != "replay_lag"]
    pd.testing.assert_frame_equal(measured.requests[columns], twin.requests[columns], check_exact=True)
    assert measured.steps["num_cached_tokens"].sum() > 0
    preempts = num_blocks == 40 or name == "priority"  # the urgent take seats of others
    assert (measured.steps["num_preempted"].sum() > 0) == preempts
    for row, request in real.requests.items():
        tokens = request.sequences[0].token_ids
        assert tokens and TOKENS.setdefault(row, tokens) == tokens, "what is generated hangs on who decodes beside it"
    assert measured.requests["replay_lag"].between(0, 1).all()


@pytest.mark.parametrize("rule", [Contiguous(), Contiguous("requested", "best", 60)], ids=lambda rule: rule.reserve)
@pytest.mark.parametrize("lookahead", [1, 8])
def test_the_simulator_repeats_the_reservations_of_a_real_run(rule: Contiguous, lookahead: int) -> None:
    torch.set_num_threads(1)
    trace, options = make_trace(), SchedulerOptions(enable_prefix_caching=False)
    real = run_real(trace, options, 130, lookahead, contiguous=rule)
    twin = run_twin(real, options, 130, lookahead, contiguous=rule).tables(trace, [])
    measured = real.tables(trace, [])
    pd.testing.assert_frame_equal(measured.steps[DECISIONS], twin.steps[DECISIONS], check_exact=True)
    columns = [c for c in measured.requests if c != "replay_lag"]
    pd.testing.assert_frame_equal(measured.requests[columns], twin.requests[columns], check_exact=True)
    assert not measured.steps["num_preempted"].any() and measured.steps["num_external_slots"].any()


@pytest.mark.parametrize("beams", [False, True])
@pytest.mark.parametrize(
    ("policy", "num_blocks"),
    [("mixed", 40), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("mixed", 400), ("prefill_first", 40)))],
)
def test_the_simulator_repeats_a_real_run_of_several_sequences(policy: str, num_blocks: int, beams: bool) -> None:
    torch.set_num_threads(1)
    # What a sample or a beam generates has no identity in a simulation, so nothing of it is found in the prefix cache.
    options = SchedulerOptions(policy=policy, enable_prefix_caching=False)
    trace = make_trace()
    table = trace.table.assign(num_output_tokens=trace.table["num_output_tokens"] // 2 + 1, n=np.arange(24) % 3 + 1)
    trace = replace(trace, table=table, beam_replacement=0.0 if beams else None)
    real = run_real(trace, options, num_blocks, lookahead=1)
    twin = run_twin(real, options, num_blocks, lookahead=1).tables(trace, [])
    measured = real.tables(trace, [])
    pd.testing.assert_frame_equal(measured.steps[DECISIONS], twin.steps[DECISIONS], check_exact=True)
    columns = [c for c in measured.requests if c != "replay_lag"]
    pd.testing.assert_frame_equal(measured.requests[columns], twin.requests[columns], check_exact=True)
    assert measured.steps["num_saved_blocks"].sum() > 0 and not any(real.parents.values())
    assert (measured.steps["num_preempted"].sum() > 0) == (num_blocks == 40)


@pytest.mark.parametrize(("name", "num_blocks"), [("mixed", 40), ("prefill_first", 400), ("vllm", 40)])
def test_the_simulator_repeats_a_real_run_with_drafts(name: str, num_blocks: int) -> None:
    """The simulation is told what each step accepts, the engine learns it when the step has run: they plan alike."""
    torch.set_num_threads(1)
    trace = make_trace()
    real = run_real(trace, OPTIONS[name], num_blocks, 1, speculation=NgramOptions(3, 1, 3))
    twin = run_twin(real, OPTIONS[name], num_blocks, 1, num_drafts=3).tables(trace, [])
    measured = real.tables(trace, [])
    columns = [*DECISIONS, "num_accepted_tokens"]
    pd.testing.assert_frame_equal(measured.steps[columns], twin.steps[columns], check_exact=True)
    others = [c for c in measured.requests if c != "replay_lag"]
    pd.testing.assert_frame_equal(measured.requests[others], twin.requests[others], check_exact=True)
    drafted = [run.steps["num_drafted_tokens"].to_numpy() for run in (measured, twin)]
    assert (drafted[0] <= drafted[1]).all(), "the simulation drafts as many as there may be"
    assert measured.steps["num_accepted_tokens"].sum() > 50
