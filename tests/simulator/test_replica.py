"""A compressed simulation equals a stepped one, and both equal a log of every token."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.core.kv.reserved.reservation import Contiguous, Fit, Reserve
from engine.core.plan import StepOutcome, StepPlan
from engine.core.policies import POLICIES
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request, SequenceStatus
from engine.core.work import StepWork
from harness.record.record import Record
from harness.record.recorder import Recorder
from harness.workload.arrivals import OpenLoop
from harness.workload.content import request_factory
from simulator.decode_run import Durations
from simulator.fleets.fleet import Fleet
from simulator.replica import ImplausibleStepError, Replica
from tests.selection import examples
from tests.simulator.builders import cost
from tests.simulator.replicas import ROOFLINE, Both, PlanLog, assert_same, expanded_gaps, make, simulate, simulate_case
from tests.simulator.workloads import Case, cases, simple_trace


class TokenLog:
    """An observer of a stepped run that keeps the time of every token, the slow and obvious way."""

    def __init__(self) -> None:
        self.times: dict[int, list[int]] = defaultdict(list)
        self.end = 0

    def on_refused(self, request: Request, reason: str) -> None:
        raise AssertionError(reason)

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Durations | int) -> None:
        assert isinstance(durations_ns, int) and plan.num_steps == 1
        self.end = start_ns + durations_ns
        for sequence in plan.decodes:
            if sequence.status is not SequenceStatus.PADDING:
                self.times[sequence.request_id].append(self.end)
        for chunk in plan.prefills:
            if chunk.is_last:
                self.times[chunk.sequence.request_id] += [self.end] * (1 + chunk.sequence.num_forks)

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None: ...

    def on_commit(self, outcome: StepOutcome) -> None:
        pass


# -- random workloads -------------------------------------------------------------------------------------------------


@examples(13)
@given(cases(), st.booleans())
def test_compressed_equals_stepped_to_the_last_bit(case: Case, by_profile: bool) -> None:
    price = cost() if by_profile else ROOFLINE
    (stepped,), (compressed,) = (simulate_case(case, price, compress=compress) for compress in (False, True))
    assert_same(stepped, compressed)


RESERVATIONS = st.builds(Contiguous, st.sampled_from(get_args(Reserve)), st.sampled_from(get_args(Fit)))
UNSHARED = st.builds(
    SchedulerOptions,
    policy=st.sampled_from([name for name, policy in POLICIES.items() if not policy.chooses_victims]),
    async_scheduling=st.booleans(),
    enable_prefix_caching=st.just(False),
)


@examples(8)
@given(cases(options=UNSHARED, contiguous=RESERVATIONS))
def test_compressed_equals_stepped_with_reservations(case: Case) -> None:
    (stepped,), (compressed,) = (simulate_case(case, compress=compress) for compress in (False, True))
    assert_same(stepped, compressed)
    steps = compressed.steps
    assert not steps["num_preempted"].any()
    unwritten = steps["num_used_blocks"] * case.block_size - steps["num_kv_tokens"]
    assert (unwritten >= steps["num_reserved_slots"]).all() and (steps["num_reserved_slots"] >= 0).all()


@examples(8)
@given(cases(), st.booleans())
def test_a_replica_alone_and_one_that_shares_a_clock_run_the_same(case: Case, compress: bool) -> None:
    (lone,), (shared,) = (simulate_case(case, alone=alone, compress=compress) for alone in (True, False))
    assert_same(lone, shared)


@examples(8)
@given(cases(max_lookahead_steps=1))
def test_the_tables_agree_with_a_log_of_every_token(case: Case) -> None:
    log = TokenLog()
    (run,) = simulate_case(case, observer=log, compress=False)
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
    np.testing.assert_array_equal(expanded_gaps(run), np.sort(gaps) * 1e-9)
    computed = run.steps["num_prefill_tokens"].sum() + run.requests["num_cached_tokens"].sum()
    # A prompt is computed once, found in the cache, or computed again after a preemption, unless what others computed
    # meanwhile is found then.
    stayed = run.requests[run.requests["num_preemptions"] == 0]
    assert computed >= stayed["num_prompt_tokens"].sum()
    assert run.steps["num_preempted"].sum() == run.requests["num_preemptions"].sum()
    assert run.steps["num_cached_tokens"].sum() == run.requests["num_cached_tokens"].sum()
    assert run.steps["num_first_admitted_tokens"].sum() == run.requests["num_prompt_tokens"].sum()
    assert len(log.times) == len(requests)
    assert run.requests["finish_time"].max() == log.end * 1e-9


# -- when a request is seen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(("async_scheduling", "lookahead"), [(False, 1), (True, 1), (False, 7), (False, 64)])
def test_an_arrival_is_seen_at_the_end_of_its_plan_or_a_step_later_and_cuts_the_run_there(
    async_scheduling: bool, lookahead: int, compress: bool
) -> None:
    times = np.array([0, 50_000_000])
    log = PlanLog()
    simulate(
        simple_trace([10, 10], [2000, 1]), OpenLoop(times), [make(2, async_scheduling=async_scheduling)],
        observer=log, compress=compress, max_lookahead_steps=lookahead,
    )  # fmt: skip
    plans = log.plans
    start, durations = plans[1][0], np.concatenate([durations for _, durations in plans[1:]])
    ends = start + durations.cumsum()
    during = int(np.searchsorted(ends, times[1]))  # the step during which it comes, counted from 0
    num_before = (during // lookahead + 1) * lookahead + async_scheduling
    num_steps = [len(durations) for _, durations in plans]
    mixed = next(i for i, (started, _) in enumerate(plans) if started == ends[num_before - 1])
    assert num_steps[mixed] == 1 and len(durations) == 1999
    if compress:
        assert num_steps == [1, num_before, 1, 1998 - num_before]
    else:
        assert set(num_steps[1:mixed]) == {lookahead}
    assert durations[num_before] > durations[num_before - 1]  # the prompt is in this step, and was in none before


@pytest.mark.parametrize(("options", "lookahead"), [({"async_scheduling": True}, 2), ({"num_lanes": 2}, 1)])
def test_what_a_replica_cannot_do_is_refused(options: dict[str, Any], lookahead: int) -> None:
    lanes = options.pop("num_lanes", 1)
    scheduler = make_scheduler(
        SchedulerOptions(**options),
        num_blocks=9, block_size=4, max_num_seqs=2, max_num_batched_tokens=9, num_lanes=lanes,
    )  # fmt: skip
    with pytest.raises(ValueError, match="planned on its own|one lane"):
        simulate(simple_trace([1], [1]), OpenLoop(np.array([0])), [scheduler], max_lookahead_steps=lookahead)


def test_an_arrival_in_an_idle_engine_is_served_at_once_and_one_beside_it_a_step_later() -> None:
    arrivals = OpenLoop(np.array([0, 10**9, 10**9 + 1]))
    (run,) = simulate(simple_trace([10] * 3, [5] * 3), arrivals, [make(3, async_scheduling=True)])
    later = run.steps[run.steps["start_time"] >= 1.0]
    assert later["num_prefill_seqs"].tolist()[:3] == [1, 0, 1]
    assert later["start_time"].iloc[0] == 1.0


@pytest.mark.parametrize("alone", [True, False])
def test_stop_ends_after_the_plan_under_way(alone: bool) -> None:
    trace = simple_trace([10] * 3, [50] * 3)
    recorder, scheduler = Recorder(), make(1)

    class Stops(PlanLog):
        def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Durations | int) -> None:
            super().on_step(plan, start_ns, durations_ns)
            if start_ns > 10_000_000:
                fleet.stop()

    replica = Replica(scheduler, ROOFLINE, Both(recorder, Stops()), compress=False)
    arrivals = OpenLoop(np.array([0, 0, 10**18]))
    fleet = Fleet(arrivals, request_factory(trace, 4), [replica], alone=alone)
    fleet.run()
    run = Record([recorder]).tables(trace, [scheduler.unfinished])
    assert run.requests["status"].tolist() == ["finished", "unfinished", "unfinished"]
    assert run.requests["arrival_time"].isna().tolist() == [False, False, True]
    assert run.steps["num_decode_seqs"].max() == 1


class SlowerAndSlower:
    """Steps of `first_ns`, and decode steps in a run that last `later_ns` from the second on."""

    def __init__(self, first_ns: int, later_ns: int) -> None:
        self._first_ns, self._later_ns = first_ns, later_ns

    def step_ns(self, work: StepWork) -> int:
        return self._first_ns

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        return np.array([self._first_ns] + [self._later_ns] * (num_steps - 1))


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(
    ("first_ns", "later_ns", "num_outputs"),
    [(2 * 10**14, 1, 10), (1000, 2 * 10**14, 10), (1000, -(2**63), 10), (9 * 10**13, 9 * 10**13, 60_000)],
)
@pytest.mark.sample(4)
def test_times_beyond_all_reason_end_the_run(first_ns: int, later_ns: int, num_outputs: int, compress: bool) -> None:
    """-2^63 is what numpy makes of a time beyond the range of int64; the last case is of many steps."""
    if first_ns == 1000 and not compress:
        pytest.skip("steps one by one all take the first time")
    trace, scheduler = simple_trace([10], [num_outputs]), make(1, num_blocks=20_000)
    replica = Replica(scheduler, SlowerAndSlower(first_ns, later_ns), Recorder(), compress=compress)
    fleet = Fleet(OpenLoop(np.array([0])), request_factory(trace, 4), [replica])
    with pytest.raises(ImplausibleStepError, match="check the units of the device's rates"):
        fleet.run()


# -- static batching --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [1000, 12])
def test_a_request_for_three_sequences_computes_its_prompt_once_and_ends_with_the_last(num_blocks: int) -> None:
    runs = []
    for compress in (False, True):
        tokens, log = TokenLog(), PlanLog()
        runs += simulate(
            simple_trace([10, 10], [20, 20]), OpenLoop(np.array([0, 0])), [make(6, num_blocks=num_blocks)],
            make_request=lambda row, arrival: Request(row, 10, 20, arrival, num_sequences=3),
            observer=log if compress else Both(log, tokens), compress=compress,
        )  # fmt: skip
        assert log.num_output_tokens == {0: 60, 1: 60}
        assert (log.num_preemptions > 0) == (num_blocks == 12)
        if num_blocks == 1000:
            assert log.num_prefill_tokens == 20 and log.num_recomputed_tokens == 0
        else:
            assert log.num_recomputed_tokens > 0
        if not compress:
            for request in log.finished:
                times = tokens.times[request.request_id]
                assert len(times) == 60 and times[:3] == [request.first_token_time] * 3
                assert times[-1] == request.finish_time
    assert_same(*runs)
