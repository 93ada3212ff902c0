"""Random workloads, and replicas that serve them behind a router, for tests of the simulated engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pandas as pd
import simpy
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.core.decodes.interface import Decodes
from engine.core.decodes.ragged import RaggedDecodes
from engine.core.decodes.uniform import UniformDecodes
from engine.core.kv.contiguous import Contiguous, ContiguousManager
from engine.core.kv.eviction import Eviction
from engine.core.plan import StepOutcome, StepPlan
from engine.core.policies import POLICIES
from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions
from engine.core.sequence import Request, Sequence
from engine.core.work import StepWork
from harness.runs.recorder import RecordedRun, Recorder
from harness.workload.arrivals import ClosedLoop, OpenLoop, Sessions
from harness.workload.content import request_factory
from harness.workload.trace import Trace, trace_table
from simulator.arrivals import NEVER, Arrivals
from simulator.costs.cost import CostModel
from simulator.costs.roofline import RooflineCost
from simulator.hardware import Device, ModelShape
from simulator.lone import LoneEnvironment
from simulator.replica import Replica
from simulator.router import RoundRobin
from simulator.transfers import TransferEngine

ROOFLINE = RooflineCost(
    ModelShape("m", 4, 256, 8, 4, 32, 768, 2048, False, 4096, "bf16", 2),
    Device("d", 1 << 30, 1e11, {"bf16": 1e12, "fp32": 1e11}, 0.8, 0.7, 1e9, 1e-5, 1e-4),
)


class FlatCost:
    """Every step takes the same time, whatever its work."""

    def __init__(self, each_ns: int = 1000) -> None:
        self._each_ns = each_ns

    def step_ns(self, work: StepWork) -> int:
        return self._each_ns

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        return np.full(num_steps, self._each_ns)


# -- random workloads -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A workload of 25 requests and the replicas that serve it; what is not said is drawn from `seed`.

    Attributes:
        extra_blocks: how many blocks the pool has beyond those of the longest request.
        num_drafts: of speculative decoding; None for decodes that grow by one token per step.
    """

    options: SchedulerOptions
    block_size: int
    extra_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    arrivals: str
    contents: str
    max_lookahead_steps: int
    seed: int
    num_replicas: int = 1
    num_host_blocks: int = 0
    offload: OffloadOptions | None = None
    num_drafts: int | None = None
    contiguous: Contiguous | None = None

    def make_scheduler(self, trace: Trace) -> Scheduler:
        longest = int((trace.table["num_prompt_tokens"] + trace.table["num_output_tokens"]).max())
        most = self.max_num_seqs * (1 + (self.num_drafts or 0))
        return make_scheduler(
            self.options,
            num_blocks=-(-longest // self.block_size) + self.extra_blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=max(self.max_num_batched_tokens, most),
            num_host_blocks=self.num_host_blocks,
            offload=self.offload,
            transfer_block_us=4.0 * self.block_size,
            make_decodes=self._make_decodes,
            contiguous=self.contiguous,
        )

    def _make_decodes(self, block_size: int) -> Decodes:
        if self.num_drafts is None:
            return UniformDecodes(block_size)
        return RaggedDecodes(block_size, self.num_drafts, self._trajectory)

    def _trajectory(self, sequence: Sequence) -> NDArray[np.int64]:
        assert self.num_drafts is not None
        rng = np.random.default_rng((self.seed, sequence.request_id, sequence.num_tokens))
        gains = rng.integers(1, 2 + self.num_drafts, sequence.end_length - sequence.num_tokens)
        return np.concatenate([[0], np.cumsum(gains)])


def legal_options(policy: str, victim: Any, **others: Any) -> SchedulerOptions:
    """Without the victim rule where the policy preempts by its own order."""
    victim = "spare_last" if POLICIES[policy].chooses_victims else victim
    return SchedulerOptions(policy=policy, victim=victim, **others)


OPTIONS = st.builds(
    legal_options,
    policy=st.sampled_from(sorted(POLICIES)),
    watermark=st.just(0.02),
    allocation=st.sampled_from(["prompt", "chunk"]),
    eviction=st.sampled_from(get_args(Eviction)),
    victim=st.sampled_from(["spare_last", "last"]),
    full_hit=st.sampled_from(["copy", "recompute_block"]),
    async_scheduling=st.booleans(),
    preemption=st.sampled_from(["recompute", "partial"]),
)


def cases(**fixed: Any) -> st.SearchStrategy[Case]:
    """Cases whose fields are drawn, but those that are given, each as a value or a strategy."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "options": OPTIONS,
        "block_size": st.sampled_from([1, 4, 16]),
        "extra_blocks": st.sampled_from([1, 5, 1000]),
        "max_num_seqs": st.sampled_from([1, 3, 16]),
        "max_num_batched_tokens": st.sampled_from([16, 64, 500]),
        "arrivals": st.sampled_from(["open", "burst", "closed", "sessions"]),
        "contents": st.sampled_from(["none", "hash_ids", "sessions"]),
        "max_lookahead_steps": st.sampled_from([1, 1, 2, 7]),
        "seed": st.integers(0, 10**6),
    }
    given = {k: v if isinstance(v, st.SearchStrategy) else st.just(v) for k, v in fixed.items()}
    return st.builds(Case, **drawn | given)


def simple_trace(prompts: list[int], outputs: list[int], **columns: object) -> Trace:
    return Trace("t", trace_table({"num_prompt_tokens": prompts, "num_output_tokens": outputs, **columns}), "made")


def make_trace(case: Case) -> Trace:
    rng = np.random.default_rng(case.seed)
    n = 25
    columns: dict[str, object] = {
        "num_prompt_tokens": rng.integers(1, 80, n),
        "num_output_tokens": rng.integers(1, 60, n),
    }
    classes = np.random.default_rng((case.seed, n))
    columns |= {"priority": classes.integers(0, 3, n), "tenant": classes.integers(0, 3, n)}
    columns["deadline"] = classes.integers(0, 10**6, n) * 1e-7
    if case.contents == "hash_ids" and case.arrivals != "sessions":
        counts = -(-np.asarray(columns["num_prompt_tokens"]) // 8)
        columns["hash_ids"] = [100 * rng.integers(0, 2) + np.arange(count) for count in counts]
    if case.contents == "sessions" or case.arrivals == "sessions":
        columns["session_id"] = np.repeat(np.arange(5), 5)
        new = rng.integers(1, 20, (5, 5))
        outputs = rng.integers(1, 20, (5, 5))
        spoken = np.cumsum(new + outputs, axis=1) - outputs
        columns |= {"num_prompt_tokens": spoken.ravel(), "num_output_tokens": outputs.ravel()}
    return Trace("t", trace_table(columns), "made", 8 if "hash_ids" in columns else None)


def make_arrivals(case: Case, trace: Trace) -> Arrivals:
    rng = np.random.default_rng(case.seed)
    n = len(trace.table)
    if case.arrivals == "closed":
        return ClosedLoop(n, 4)
    if case.arrivals == "sessions":
        think = rng.integers(0, 5_000_000, n) * rng.integers(0, 2, n)  # half of the turns come at once
        return Sessions(trace.table["session_id"].to_numpy(), np.sort(rng.integers(0, 10**8, 5)), think)
    # Whole multiples of 10 us: some arrivals hit the end of a step exactly or come together.
    spread = 100 if case.arrivals == "burst" else 20_000
    return OpenLoop(np.sort(rng.integers(0, spread, n)) * 10_000)


# -- replicas that serve them -----------------------------------------------------------------------------------------


class PlanLog:
    """An observer that keeps what it is told.

    Attributes:
        plans: start and durations of each plan.
        num_prefill_tokens: computed in all prompt chunks.
        finished: requests, whose sequences a replica forgets.
        num_output_tokens: of each finished request.
        num_preemptions, num_recomputed_tokens: of all finished requests.
    """

    def __init__(self) -> None:
        self.plans: list[tuple[int, NDArray[np.int64]]] = []
        self.num_prefill_tokens = 0
        self.finished: list[Request] = []
        self.num_output_tokens: dict[int, int] = {}
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0

    def on_refused(self, request: Request, reason: str) -> None:
        raise AssertionError(reason)

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: NDArray[np.int64] | int) -> None:
        self.plans.append((start_ns, np.atleast_1d(np.asarray(durations_ns, np.int64))))
        assert len(self.plans[-1][1]) == plan.num_steps
        self.num_prefill_tokens += sum(chunk.num_tokens for chunk in plan.prefills)

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None: ...

    def on_commit(self, outcome: StepOutcome) -> None:
        self.finished += outcome.finished
        for request in outcome.finished:
            self.num_output_tokens[request.request_id] = request.num_output_tokens
            self.num_preemptions += request.num_preemptions
            self.num_recomputed_tokens += request.num_recomputed_tokens


class Both:
    """Hands everything on to two observers."""

    def __init__(self, *observers: object) -> None:
        self._observers = observers

    def __getattr__(self, name: str) -> Any:
        return lambda *args: [getattr(observer, name)(*args) for observer in self._observers]


def simulate(
    trace: Trace,
    arrivals: Arrivals,
    schedulers: list[Scheduler],
    cost_model: CostModel = ROOFLINE,
    *,
    make_request: Callable[[int, int], Request] | None = None,
    observer: Any = None,
    make_transfers: Callable[[], TransferEngine] | None = None,
    env: simpy.Environment | LoneEnvironment | None = None,
    **options: Any,
) -> list[RecordedRun]:
    """Serve the trace to its end with a replica for each scheduler, taken in turn; returns the tables of each.

    Args:
        observer: sees what the recorders of all replicas see.
        options: arguments of the replicas.
    """
    env = simpy.Environment(initial_time=0) if env is None else env
    make_request = make_request or request_factory(trace, schedulers[0].blocks.block_size)
    router = RoundRobin(arrivals, make_request)
    recorders = [Recorder(reserves=isinstance(each.blocks, ContiguousManager)) for each in schedulers]
    for scheduler, recorder in zip(schedulers, recorders, strict=True):
        sees: Any = Both(recorder, observer) if observer else recorder
        transfers = make_transfers() if make_transfers else None
        router.connect(Replica(env, scheduler, cost_model, router, sees, transfers=transfers, **options))
    env.run()
    for scheduler in schedulers:
        assert not scheduler.unfinished
        scheduler.check_integrity()
    assert arrivals.next_ns == NEVER
    return [recorder.tables(trace, []) for recorder in recorders]


def simulate_case(case: Case, cost_model: CostModel = ROOFLINE, **options: Any) -> list[RecordedRun]:
    trace = make_trace(case)
    schedulers = [case.make_scheduler(trace) for _ in range(case.num_replicas)]
    lookahead = 1 if case.options.async_scheduling else case.max_lookahead_steps
    arrivals = make_arrivals(case, trace)
    return simulate(trace, arrivals, schedulers, cost_model, max_lookahead_steps=lookahead, **options)


def expanded_gaps(run: RecordedRun) -> NDArray[np.float64]:
    return np.sort(np.repeat(run.gaps.values, run.gaps.weights))


def assert_same(left: RecordedRun, right: RecordedRun, *, but: tuple[str, ...] = ()) -> None:
    """Two runs are equal to the last bit, `but` for these columns of the steps."""
    pd.testing.assert_frame_equal(left.requests, right.requests, check_exact=True)
    columns = [column for column in left.steps if column not in but]
    pd.testing.assert_frame_equal(left.steps[columns], right.steps[columns], check_exact=True)
    np.testing.assert_array_equal(expanded_gaps(left), expanded_gaps(right))


def make(max_num_seqs: int, *, num_blocks: int = 1000, **options: Any) -> Scheduler:
    """A scheduler with blocks of 4 tokens and at most 100 tokens a step."""
    return make_scheduler(
        SchedulerOptions(**options),
        num_blocks=num_blocks,
        block_size=4,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=100,
    )
