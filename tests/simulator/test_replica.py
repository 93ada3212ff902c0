"""A compressed simulation equals a stepped one, and both equal a log of every token."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.core.block_manager import BlockManager
from engine.core.plan import StepOutcome, StepPlan
from engine.core.policy import POLICIES
from engine.core.scheduler import Scheduler
from engine.core.scheduler_options import SchedulerOptions, make_scheduler
from engine.core.sequence import Sequence
from harness.runs.recorder import RecordedRun, Recorder
from harness.workload.arrivals import ClosedLoop, OpenLoop, Sessions
from harness.workload.content import sequence_factory
from harness.workload.trace import Trace, trace_table
from simulator.arrivals import NEVER, Arrivals
from simulator.costs.roofline import RooflineCost
from simulator.hardware import Device, ModelShape
from simulator.replica import Replica
from tests.simulator.builders import cost

MODEL = ModelShape("m", 4, 256, 8, 4, 32, 768, 2048, False, 4096, "bf16", 2)
DEVICE = Device("d", 1 << 30, 1e11, {"bf16": 1e12, "fp32": 1e11}, 0.8, 0.7, 1e9, 1e-5, 1e-4)


@dataclass(frozen=True)
class Case:
    options: SchedulerOptions
    block_size: int
    extra_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    arrivals: str
    contents: str
    max_lookahead_steps: int
    seed: int


CASES = st.builds(
    Case,
    options=st.builds(
        SchedulerOptions,
        policy=st.sampled_from(sorted(POLICIES)),
        watermark=st.just(0.02),
        allocation=st.sampled_from(["prompt", "chunk"]),
        eviction=st.sampled_from(["unhashed_first", "lru"]),
        victim=st.sampled_from(["spare_last", "last"]),
        full_hit=st.sampled_from(["copy", "recompute_block"]),
        async_scheduling=st.booleans(),
    ),
    block_size=st.sampled_from([1, 4, 16]),
    extra_blocks=st.sampled_from([1, 5, 1000]),
    max_num_seqs=st.sampled_from([1, 3, 16]),
    max_num_batched_tokens=st.sampled_from([16, 64, 500]),
    arrivals=st.sampled_from(["open", "burst", "closed", "sessions"]),
    contents=st.sampled_from(["none", "hash_ids", "sessions"]),
    max_lookahead_steps=st.sampled_from([1, 1, 2, 7]),
    seed=st.integers(0, 10**6),
)


def make_trace(case: Case) -> Trace:
    rng = np.random.default_rng(case.seed)
    n = 25
    columns: dict[str, object] = {
        "num_prompt_tokens": rng.integers(1, 80, n),
        "num_output_tokens": rng.integers(1, 60, n),
    }
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
        think = rng.integers(0, 5_000_000, n)
        return Sessions(trace.table["session_id"].to_numpy(), np.sort(rng.integers(0, 10**8, 5)), think)
    # Whole multiples of 10 us: some arrivals hit the end of a step exactly or come together.
    spread = 100 if case.arrivals == "burst" else 20_000
    return OpenLoop(np.sort(rng.integers(0, spread, n)) * 10_000)


class TokenLog:
    """An observer of a stepped run that keeps the time of every token, the slow and obvious way."""

    def __init__(self) -> None:
        self.times: dict[int, list[int]] = defaultdict(list)
        self.end = 0

    def on_refused(self, sequence: Sequence, reason: str) -> None:
        raise AssertionError(reason)

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: NDArray[np.int64] | int) -> None:
        assert isinstance(durations_ns, int) and plan.num_steps == 1
        self.end = start_ns + durations_ns
        for sequence in (*plan.decodes, *(c.sequence for c in plan.prefills if c.is_last)):
            self.times[sequence.request_id].append(self.end)

    def on_commit(self, outcome: StepOutcome) -> None:
        pass


class Both:
    """Hands everything on to two observers."""

    def __init__(self, *observers: object) -> None:
        self.observers = observers

    def __getattr__(self, name: str) -> object:
        return lambda *args: [getattr(observer, name)(*args) for observer in self.observers]


def simulate(case: Case, observer: object, *, compress: bool, by_profile: bool = False) -> Trace:
    trace = make_trace(case)
    longest = int((trace.table["num_prompt_tokens"] + trace.table["num_output_tokens"]).max())
    scheduler = make_scheduler(
        case.options,
        num_blocks=-(-longest // case.block_size) + case.extra_blocks,
        block_size=case.block_size,
        max_num_seqs=case.max_num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
    )
    env = simpy.Environment(initial_time=0)
    make = sequence_factory(trace, case.block_size)
    arrivals = make_arrivals(case, trace)
    lookahead = 1 if case.options.async_scheduling else case.max_lookahead_steps
    Replica(
        env, scheduler, cost() if by_profile else RooflineCost(MODEL, DEVICE), arrivals, make,
        observer,  # type: ignore[arg-type]
        compress=compress, max_lookahead_steps=lookahead,
    )  # fmt: skip
    env.run()
    assert not scheduler.unfinished and arrivals.next_ns == NEVER
    return trace


def recorded(case: Case, *, compress: bool, by_profile: bool) -> RecordedRun:
    recorder = Recorder()
    trace = simulate(case, recorder, compress=compress, by_profile=by_profile)
    return recorder.tables(trace, [])


def expanded(run: RecordedRun) -> NDArray[np.float64]:
    return np.sort(np.repeat(run.gaps.values, run.gaps.weights))


@settings(max_examples=120, deadline=None)
@given(CASES, st.booleans())
def test_compressed_equals_stepped_to_the_last_bit(case: Case, by_profile: bool) -> None:
    stepped, compressed = (recorded(case, compress=each, by_profile=by_profile) for each in (False, True))
    pd.testing.assert_frame_equal(stepped.requests, compressed.requests, check_exact=True)
    pd.testing.assert_frame_equal(stepped.steps, compressed.steps, check_exact=True)
    np.testing.assert_array_equal(expanded(stepped), expanded(compressed))


@settings(max_examples=60, deadline=None)
@given(CASES)
def test_the_tables_agree_with_a_log_of_every_token(case: Case) -> None:
    log, recorder = TokenLog(), Recorder()
    case = replace(case, max_lookahead_steps=1)
    trace = simulate(case, Both(log, recorder), compress=False)
    run = recorder.tables(trace, [])
    requests = run.requests.set_index("request_id")
    gaps = []
    for request_id, times in log.times.items():
        row: Any = requests.loc[request_id]
        assert (row.first_token_time, row.finish_time) == (times[0] * 1e-9, times[-1] * 1e-9)
        assert row.num_output_tokens == row.num_requested_tokens == len(times)
        assert row.ttft == pytest.approx(times[0] * 1e-9 - row.arrival_time, abs=1e-12)
        assert row.queue_time <= row.ttft
        if len(times) > 1:
            assert row.tpot == pytest.approx((times[-1] - times[0]) * 1e-9 / (len(times) - 1), abs=1e-12)
        gaps += np.diff(times).tolist()
    np.testing.assert_array_equal(expanded(run), np.sort(gaps) * 1e-9)
    computed = run.steps["num_prefill_tokens"].sum() + run.requests["num_cached_tokens"].sum()
    # A prompt is computed once, found in the cache, or computed again after a preemption.
    assert computed >= run.requests["num_prompt_tokens"].sum()
    assert run.steps["num_preempted"].sum() == run.requests["num_preemptions"].sum()
    assert run.steps["num_cached_tokens"].sum() == run.requests["num_cached_tokens"].sum()
    assert run.steps["num_first_admitted_tokens"].sum() == run.requests["num_prompt_tokens"].sum()
    assert recorder.num_done == len(trace.table) and recorder.now_ns == log.end


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(("async_scheduling", "lookahead"), [(False, 1), (True, 1), (False, 7), (False, 64)])
def test_an_arrival_is_seen_at_the_end_of_its_plan_or_a_step_later_and_cuts_the_run_there(
    async_scheduling: bool, lookahead: int, compress: bool
) -> None:
    times = np.array([0, 50_000_000])
    trace = Trace("t", trace_table({"num_prompt_tokens": [10, 10], "num_output_tokens": [2000, 1]}), "made")
    plans: list[tuple[int, NDArray[np.int64], int]] = []
    observer = SimpleNamespace(
        on_step=lambda plan, start, d: plans.append((start, np.atleast_1d(d), plan.num_steps)), on_commit=lambda o: None
    )
    env = simpy.Environment(initial_time=0)
    scheduler = Scheduler(
        BlockManager(1000, 4), POLICIES["mixed"](), max_num_seqs=2, max_num_batched_tokens=100,
        async_scheduling=async_scheduling,
    )  # fmt: skip
    make = sequence_factory(trace, 4)
    cost = RooflineCost(MODEL, DEVICE)
    Replica(
        env, scheduler, cost, OpenLoop(times), make, observer, compress=compress, max_lookahead_steps=lookahead
    )  # fmt: skip
    env.run()
    start, durations = plans[1][0], np.concatenate([durations for _, durations, _ in plans[1:]])
    ends = start + durations.cumsum()
    during = int(np.searchsorted(ends, times[1]))  # the step during which it comes, counted from 0
    num_before = (during // lookahead + 1) * lookahead + async_scheduling
    mixed = next(i for i, (started, *_) in enumerate(plans) if started == ends[num_before - 1])
    assert plans[mixed][2] == 1 and len(durations) == 1999
    if compress:
        assert [num_steps for *_, num_steps in plans] == [1, num_before, 1, 1998 - num_before]
    else:
        assert {num_steps for *_, num_steps in plans[1:mixed]} == {lookahead}
    assert durations[num_before] > durations[num_before - 1]  # the prompt is in this step, and was in none before


def test_steps_that_are_planned_one_by_one_are_not_planned_several_at_a_time() -> None:
    scheduler = Scheduler(
        BlockManager(9, 4), POLICIES["mixed"](), max_num_seqs=2, max_num_batched_tokens=9, async_scheduling=True
    )
    trace = Trace("t", trace_table({"num_prompt_tokens": [1], "num_output_tokens": [1]}), "made")
    with pytest.raises(ValueError, match="planned on its own"):
        Replica(
            simpy.Environment(), scheduler, RooflineCost(MODEL, DEVICE), OpenLoop(np.array([0])),
            sequence_factory(trace, 4), Recorder(), max_lookahead_steps=2,
        )  # fmt: skip


def test_an_arrival_in_an_idle_engine_is_served_at_once_and_one_beside_it_a_step_later() -> None:
    times = np.array([0, 10**9, 10**9 + 1])
    trace = Trace("t", trace_table({"num_prompt_tokens": [10] * 3, "num_output_tokens": [5] * 3}), "made")
    recorder = Recorder()
    env = simpy.Environment(initial_time=0)
    scheduler = Scheduler(
        BlockManager(1000, 4), POLICIES["mixed"](), max_num_seqs=3, max_num_batched_tokens=100, async_scheduling=True
    )
    cost = RooflineCost(MODEL, DEVICE)
    Replica(env, scheduler, cost, OpenLoop(times), sequence_factory(trace, 4), recorder)
    env.run()
    steps = recorder.tables(trace, []).steps
    later = steps[steps["start_time"] >= 1.0]
    assert later["num_prefill_seqs"].tolist()[:3] == [1, 0, 1]
    assert later["start_time"].iloc[0] == 1.0


def test_stop_ends_after_the_plan_under_way() -> None:
    trace = Trace("t", trace_table({"num_prompt_tokens": [10] * 3, "num_output_tokens": [50] * 3}), "made")
    recorder = Recorder()
    env = simpy.Environment(initial_time=0)
    scheduler = Scheduler(BlockManager(1000, 4), POLICIES["mixed"](), max_num_seqs=1, max_num_batched_tokens=100)
    arrivals = OpenLoop(np.array([0, 0, 10**18]))
    cost = RooflineCost(MODEL, DEVICE)
    replica = Replica(env, scheduler, cost, arrivals, sequence_factory(trace, 4), recorder, compress=False)
    env.run(until=10_000_000)
    replica.stop()
    env.run()
    run = recorder.tables(trace, scheduler.unfinished)
    assert run.requests["status"].tolist() == ["finished", "unfinished", "unfinished"]
    assert run.requests["arrival_time"].isna().tolist() == [False, False, True]
    assert run.steps["num_decode_seqs"].max() == 1
