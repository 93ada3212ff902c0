"""Servers that die, start and are drained: every request ends once, and nothing is held for ever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.planning.policy_options import NoOptions
from engine.core.routing.least_requests import LeastRequests
from engine.core.routing.round_robin import RoundRobin
from engine.core.routing.session_affinity import SessionAffinity
from engine.core.scaling import Autoscaler, Scaling
from engine.core.scheduler import Scheduler
from engine.core.sequence import Request
from harness.record.recorder import Recorder
from harness.workload.arrivals import ClosedLoop, OpenLoop
from harness.workload.content import request_factory
from simulator.arrivals import NEVER
from simulator.fleets.fleet import Fleet
from simulator.fleets.roster import Changes, Count, Failure, Scaled
from simulator.fleets.staffing import Staffing
from simulator.replica import Replica
from tests.compiled import Overlaid
from tests.selection import examples
from tests.simulator.fleets.builders import Nosy
from tests.simulator.replicas import FlatCost, make
from tests.simulator.workloads import Case, cases, make_arrivals, make_trace, simple_trace

MS = 1_000_000
RULES: dict[str, Any] = {"turn": RoundRobin, "least": LeastRequests, "session": SessionAffinity, "nosy": Nosy}


class Ends:
    """When and how requests end, by server; and the schedulers that servers have had."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, int, str]] = []  # request, server, how
        self.first_tokens: dict[int, int] = {}
        self.arrivals: dict[int, int] = {}
        self.schedulers: list[Scheduler] = []
        self.num_steps = 0

    def recorder(self, server: int) -> Any:
        recorder = Recorder()

        def on_step(plan: Any, start_ns: int, durations_ns: Any, start: Any = None) -> None:
            recorder.on_step(plan, start_ns, durations_ns, start)
            self.num_steps += 1 if isinstance(durations_ns, int) else len(durations_ns)

        def on_commit(outcome: Any) -> None:
            recorder.on_commit(outcome)
            for request in outcome.finished:
                self.ended.append((request.request_id, server, "finished"))
                self.first_tokens[request.request_id] = request.first_token_time
                self.arrivals[request.request_id] = request.arrival_time

        return Overlaid(recorder, on_step=on_step, on_commit=on_commit)

    def lost(self, request: Request, server: int, now_ns: int) -> None:
        self.ended.append((request.request_id, server, "lost"))


def serve(
    case: Case | None,
    changes: Changes,
    rule: Any,
    *,
    num_servers: int,
    lengths: tuple[list[int], list[int]] = ([], []),
    times: Any = None,
    step_ns: int = MS,
    compress: bool = True,
) -> tuple[Ends, Staffing]:
    ends = Ends()
    trace = simple_trace(*lengths) if case is None else make_trace(case)
    arrivals = make_arrivals(case, trace) if case else OpenLoop(times) if isinstance(times, np.ndarray) else times

    def new() -> Scheduler:
        ends.schedulers.append(make(4) if case is None else case.make_scheduler(trace))
        return ends.schedulers[-1]

    replicas = [
        Replica(new(), FlatCost(step_ns), ends.recorder(number), compress=compress) for number in range(num_servers)
    ]
    make_request = request_factory(trace, replicas[0].scheduler.blocks.block_size)
    staffing = Staffing(changes, lambda number: new(), ends.lost)
    Fleet(arrivals, make_request, replicas, rule, staffing=staffing).run()
    assert arrivals.next_ns == NEVER
    for replica in replicas:
        assert not replica.scheduler.unfinished and not replica.num_waiting
        replica.scheduler.check_integrity()
        assert replica.scheduler.blocks.num_used_blocks() == 0
    return ends, staffing


failures = st.lists(
    st.builds(
        Failure,
        st.integers(0, 2),
        st.integers(1, 400_000),
        st.one_of(st.none(), st.integers(1, 300_000)),
    ),
    max_size=6,
).map(tuple)
scaled = st.builds(
    Scaled,
    st.builds(
        Scaling, st.sampled_from(["requests", "queue", "kv_use"]), st.sampled_from([0.2, 0.7]), st.integers(1, 2),
        st.just(3), st.integers(1, 3),
    ),
    st.sampled_from([5_000, 30_000]),
    st.sampled_from([1, 20_000]),
)  # fmt: skip


@examples(30)
@given(
    cases(num_replicas=3), failures, st.booleans(), st.one_of(st.none(), scaled), st.sampled_from(sorted(RULES)),
    st.booleans(),
)  # fmt: skip
def test_every_request_ends_once_whatever_happens_to_servers(
    case: Case, failures: tuple[Failure, ...], retries: bool, scaled: Scaled | None, rule: str, compress: bool
) -> None:
    changes = Changes(failures, retries, scaled, None if scaled is None else 2)
    ends, staffing = serve(case, changes, RULES[rule](NoOptions()), num_servers=3, step_ns=10_000, compress=compress)
    assert sorted(request for request, _, _ in ends.ended) == list(range(25))
    if retries and scaled is None and {0, 1, 2} - {failure.server for failure in failures}:
        assert all(how == "finished" for _, _, how in ends.ended)
    assert all(0 <= count.num_open <= count.num_paid <= 3 for count in staffing.counts)


@examples(10)
@given(cases(num_replicas=3, max_lookahead_steps=1), failures, st.one_of(st.none(), scaled))
def test_compressed_equals_stepped(case: Case, failures: tuple[Failure, ...], scaled: Scaled | None) -> None:
    changes = Changes(failures, True, scaled, None if scaled is None else 1)
    both = [serve(case, changes, Nosy(), num_servers=3, step_ns=10_000, compress=each)[0] for each in (True, False)]
    assert sorted(both[0].ended) == sorted(both[1].ended) and both[0].first_tokens == both[1].first_tokens


def test_a_request_of_a_dead_server_begins_anew_on_another() -> None:
    # Steps of 1 ms. Server 0 dies at 2.5 ms, within the third step of row 0, which then needs 5 steps on server 1.
    one = ([4], [5]), np.array([0])
    dies = (Failure(0, 2_500_000),)
    ends, staffing = serve(None, Changes(dies), RoundRobin(NoOptions()), num_servers=2, lengths=one[0], times=one[1])
    assert ends.ended == [(0, 1, "finished")] and ends.first_tokens == {0: 3_500_000} and staffing.retried == {0}
    assert ends.arrivals == {0: 0}, "it has waited since it came"
    assert staffing.counts == [Count(0, 2, 2), Count(2_500_000, 1, 1)]
    late, _ = serve(
        None, Changes((Failure(0, 5 * MS + MS // 2),)), RoundRobin(NoOptions()), num_servers=1, lengths=([4], [9]),
        times=one[1],
    )  # fmt: skip
    assert late.num_steps == 5, "those that ended before"
    lost, _ = serve(
        None, Changes(dies, retries=False), RoundRobin(NoOptions()), num_servers=2, lengths=one[0], times=one[1]
    )
    assert lost.ended == [(0, 0, "lost")]


def test_requests_wait_for_a_server_that_comes_back_and_are_lost_if_none_does() -> None:
    both = Failure(0, MS, 4 * MS), Failure(1, MS)
    lengths, times = ([4, 4], [5, 5]), np.array([0, 2 * MS])
    ends, _ = serve(None, Changes(both), RoundRobin(NoOptions()), num_servers=2, lengths=lengths, times=times)
    assert [(request, server) for request, server, _ in ends.ended] == [(0, 0), (1, 0)]
    assert ends.first_tokens == {0: 6 * MS, 1: 6 * MS}
    lengths, times = ([4] * 7, [5] * 7), np.array([0, *[2 * MS] * 6])
    ends, _ = serve(None, Changes((Failure(0, MS, 4 * MS),)), RoundRobin(NoOptions()), num_servers=1, lengths=lengths,
                    times=times)  # fmt: skip
    first = [ends.first_tokens[request] for request in range(7)]
    assert first[:4] == [6 * MS] * 4 and min(first[4:]) > 6 * MS, "in the order in which they came, four at a time"
    lengths, times = ([4, 4], [5, 5]), np.array([0, 2 * MS])
    never = Failure(0, MS), Failure(1, MS)
    ends, _ = serve(None, Changes(never), RoundRobin(NoOptions()), num_servers=2, lengths=lengths, times=times)
    assert {how for _, _, how in ends.ended} == {"lost"}


def test_servers_are_started_when_they_are_needed_and_drained_when_they_are_not() -> None:
    # 12 requests of 10 ms at 0, one server, 2 requests wanted on each: at 2 ms 6 are wanted and 3 there are.
    options = Scaling("requests", 2.0, 1, 3, hold_readings=2)
    scaled = Scaled(options, interval_ns=2 * MS, start_up_ns=MS)
    times = np.array([0] * 12 + [4 * MS] * 6 + [60 * MS])
    ends, staffing = serve(
        None, Changes(scaled=scaled, num_open=1), LeastRequests(NoOptions()), num_servers=3,
        lengths=([4] * 19, [10] * 16 + [60, 60, 40]), times=times,
    )  # fmt: skip
    assert staffing.counts[:3] == [Count(0, 1, 1), Count(2 * MS, 1, 3), Count(3 * MS, 3, 3)]
    assert {server for request, server, _ in ends.ended if 12 <= request < 18} == {1, 2}, "the new ones are idle"
    assert staffing.counts[-1] == Count(staffing.counts[-1].time_ns, 1, 1), "two were drained"
    draining = [count for count in staffing.counts if count.num_open < count.num_paid and count.time_ns > 4 * MS]
    assert draining, "what they had was served"


def test_a_server_that_dies_while_it_starts_is_not_there_when_it_would_have_been() -> None:
    scaled = Scaled(Scaling("requests", 1.0, 1, 2), interval_ns=2 * MS, start_up_ns=4 * MS)
    _, staffing = serve(
        None, Changes((Failure(1, 3 * MS),), scaled=scaled, num_open=1), LeastRequests(NoOptions()), num_servers=2,
        lengths=([4] * 4, [20] * 4), times=np.zeros(4, int),
    )  # fmt: skip
    assert staffing.counts == [Count(0, 1, 1), Count(2 * MS, 1, 2), Count(3 * MS, 1, 1)]


@pytest.mark.parametrize(
    ("metric", "target", "counts"),
    [
        ("kv_use", 0.5, [Count(0, 1, 1)]),  # a pool in which hardly anything is
        # Row 0 ends at 6 ms, too late: that is half of the fleet too few; at 8 ms nobody has ended since.
        ("slo", 0.5, [Count(0, 1, 1), Count(6 * MS, 1, 2), Count(7 * MS, 2, 2), Count(8 * MS, 1, 1)]),
    ],
)
def test_a_reading_is_of_the_pools_in_use_or_of_who_ended_since_the_last_one(
    metric: Any, target: float, counts: list[Count]
) -> None:
    scaled = Scaled(Scaling(metric, target, 1, 2), 2 * MS, MS, is_within_slo=lambda request: request.request_id > 0)
    _, staffing = serve(
        None, Changes(scaled=scaled, num_open=1), LeastRequests(NoOptions()), num_servers=2,
        lengths=([4, 4], [6, 40]), times=np.array([0, 0]),
    )  # fmt: skip
    assert staffing.counts == counts


@pytest.mark.parametrize(
    ("metric", "values", "desired"),
    [
        ("requests", [10, 10.5, 20, 1, 1, 1], [4, 4, 8, 8, 8, 1]),
        ("slo", [0.99, 0.9, 0.0, 1.0, 1.0, 1.0], [4, 8, 8, 8, 8, 3]),
        ("kv_use", [20], [8]),
    ],
)
def test_more_servers_at_once_and_fewer_after_a_while(metric: Any, values: list[float], desired: list[int]) -> None:
    target = 0.99 if metric == "slo" else 10.0
    scaler = Autoscaler(Scaling(metric, target, 1, 8, hold_readings=3))
    assert [scaler.desired(4, value) for value in values] == desired


def test_servers_are_rounded_up_and_a_broken_slo_at_most_doubles_them() -> None:
    assert Autoscaler(Scaling("requests", 10.0, 1, 100)).desired(4, 11.5) == 5
    assert Autoscaler(Scaling("requests", 10.0, 1, 100, hold_readings=2)).desired(4, 1.0) == 4
    by_slo = Autoscaler(Scaling("slo", 0.9, 1, 100))
    assert [by_slo.desired(4, value) for value in (0.0, 0.94, 0.96)] == [8, 4, 3]


def test_what_a_lost_request_brings_is_served() -> None:
    lost = Changes((Failure(0, 2_500_000, MS),), retries=False)
    ends, _ = serve(None, lost, None, num_servers=1, lengths=([4, 4], [5, 5]), times=ClosedLoop(2, 1))
    assert ends.ended == [(0, 0, "lost"), (1, 0, "finished")]
