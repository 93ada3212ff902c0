"""Two replicas behind a router: who serves what, and requests that one replica's end brings to the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import SchedulerOptions
from harness.record.record import RecordedRun
from harness.workload.arrivals import ClosedLoop, OpenLoop, Sessions
from tests.selection import examples
from tests.simulator.replicas import FlatCost, PlanLog, assert_same, simulate, simulate_case
from tests.simulator.workloads import Case, cases, simple_trace


def make(max_num_seqs: int = 4, *, max_model_len: int | None = None, async_scheduling: bool = False) -> Scheduler:
    return make_scheduler(
        SchedulerOptions(async_scheduling=async_scheduling),
        num_blocks=1000,
        block_size=4,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=100,
        max_model_len=max_model_len,
    )


def served_rows(run: RecordedRun) -> list[int]:
    return np.flatnonzero(run.requests["status"] == "finished").tolist()


@examples(4)
@given(cases(num_replicas=st.sampled_from([2, 3])), st.booleans())
def test_compressed_replicas_equal_stepped_ones_to_the_last_bit(case: Case, is_flat: bool) -> None:
    # With a flat cost replicas often end their steps, and requests, at the same time.
    price = {"cost_model": FlatCost(10_000)} if is_flat else {}
    stepped, compressed, again = (simulate_case(case, compress=each, **price) for each in (False, True, True))
    for runs in zip(stepped, compressed, again, strict=True):
        assert_same(*runs[:2])
        assert_same(*runs[1:])
    served = [row for run in stepped for row in served_rows(run)]
    assert sorted(served) == list(range(25))
    counts = [len(served_rows(run)) for run in stepped]
    assert max(counts) - min(counts) <= 1
    tokens = sum(run.requests["num_output_tokens"].sum() for run in stepped)
    assert tokens == stepped[0].requests["num_requested_tokens"].sum()


@pytest.mark.parametrize("arrivals", ["open", "closed"])
def test_requests_go_to_the_replicas_in_turn(arrivals: str) -> None:
    n = 9
    trace = simple_trace([10] * n, list(range(5, 5 + n)))
    source = OpenLoop(np.arange(n) * 10_000) if arrivals == "open" else ClosedLoop(n, 4)
    runs = simulate(trace, source, [make(), make()], FlatCost(1000))
    assert [served_rows(run) for run in runs] == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]


@examples(5)
@given(cases(num_replicas=1, arrivals=st.sampled_from(["open", "burst"]), contents="none"))
def test_two_replicas_serve_open_arrivals_as_each_would_serve_its_own(case: Case) -> None:
    together = simulate_case(replace(case, num_replicas=2))
    for run, other in zip(together, together[::-1], strict=True):
        assert set(served_rows(run)).isdisjoint(served_rows(other))
        done = run.requests.loc[served_rows(run)]
        assert done["num_output_tokens"].tolist() == done["num_requested_tokens"].tolist()


@pytest.mark.parametrize("compress", [True, False])
def test_a_request_that_an_end_brings_cuts_the_plan_of_the_replica_that_gets_it(compress: bool) -> None:
    # Row 0 goes to replica 0 and ends after 5 steps, row 1 runs for long on replica 1. Row 2 goes to replica 0 and
    # ends at 8 ms; row 3 goes to replica 1, in the middle of the only plan that it had left.
    trace = simple_trace([10] * 4, [5, 500, 3, 2])
    log = PlanLog()
    runs = simulate(
        trace, ClosedLoop(4, 2), [make(), make()], FlatCost(1_000_000), observer=log, compress=compress
    )  # fmt: skip
    assert runs[0].requests["finish_time"].dropna().tolist() == [0.005, 0.008]
    assert runs[1].requests["first_scheduled_time"].dropna().tolist() == [0.0, 0.008]
    assert runs[1].requests["finish_time"].dropna().tolist() == [0.5, 0.010]
    if compress:
        # Once 8 steps have passed without a request, runs of steps are planned at once, ever longer ones.
        assert len(log.plans) == 9  # of 510 steps


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(("num_at_once", "ends_first"), [(4, 1), (5, 0)])
def test_a_request_that_an_end_brings_is_in_the_step_that_begins_at_that_time(
    num_at_once: int, ends_first: int, compress: bool
) -> None:
    # Both replicas begin a step at 5 us, when one of them ends a request, and the next is for the other.
    outputs = [50] * num_at_once + [3]
    outputs[ends_first] = 5
    trace = simple_trace([10] * len(outputs), outputs)
    runs = simulate(trace, ClosedLoop(len(outputs), num_at_once), [make(), make()], FlatCost(1000), compress=compress)
    brought = runs[1 - ends_first].requests.loc[num_at_once]
    assert brought["arrival_time"] == brought["first_scheduled_time"] == pytest.approx(5e-6)


@pytest.mark.parametrize("compress", [True, False])
def test_an_idle_replica_serves_the_next_turn_at_its_arrival_while_the_others_are_busy(compress: bool) -> None:
    # Rows 0 and 3 are a session; row 2 keeps replica 0 busy with steps of 1 ms when row 3 comes to replica 1.
    trace = simple_trace([10] * 4, [2, 1, 100, 1], session_id=[0, 1, 2, 0])
    think = np.array([0, 0, 0, 3_500_000])
    arrivals = Sessions(trace.table["session_id"].to_numpy(), np.array([0, 1, 2]), think)
    runs = simulate(trace, arrivals, [make(), make()], FlatCost(1_000_000), compress=compress)
    assert served_rows(runs[1]) == [1, 3]
    last = runs[1].requests.loc[3]
    assert last["arrival_time"] == pytest.approx(2e-3 + 3.5e-3)
    assert last["queue_time"] == 0


@pytest.mark.parametrize("async_scheduling", [True, False])
@pytest.mark.parametrize("compress", [True, False])
def test_a_refused_request_brings_the_next_of_its_client_to_the_other_replica(
    compress: bool, async_scheduling: bool
) -> None:
    trace = simple_trace([10, 10, 90, 10, 90, 10], [5, 50, 5, 5, 5, 5])
    schedulers = [make(max_model_len=80, async_scheduling=async_scheduling) for _ in range(2)]
    runs = simulate(trace, ClosedLoop(6, 2), schedulers, FlatCost(1000), compress=compress)
    rejected = [np.flatnonzero(run.requests["status"] == "rejected").tolist() for run in runs]
    assert rejected == [[2, 4], []]
    assert [served_rows(run) for run in runs] == [[0], [1, 3, 5]]
