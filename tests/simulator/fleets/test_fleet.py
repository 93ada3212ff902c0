"""Fleets: the router decides at the arrival, on the state of that time, and nothing depends on the order of servers."""

from __future__ import annotations

from collections import abc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.planning.policy_options import NoOptions
from engine.core.routing.least_requests import LeastRequests
from engine.core.routing.prefix_affinity import PrefixAffinity, PrefixAffinityOptions
from engine.core.routing.random import Random
from engine.core.routing.round_robin import RoundRobin
from engine.core.routing.router import Router, ServerView
from engine.core.sequence import Request
from harness.record.record import RecordedRun
from harness.workload.arrivals import OpenLoop
from tests.selection import examples
from tests.simulator.fleets.builders import Nosy
from tests.simulator.replicas import FlatCost, assert_same, make, simulate, simulate_case
from tests.simulator.workloads import Case, cases, make_trace, simple_trace


def rules() -> dict[str, Router]:
    return {
        "turn": RoundRobin(NoOptions()),
        "least": LeastRequests(NoOptions()),
        "prefix": PrefixAffinity(PrefixAffinityOptions(max_ahead=3)),
        "nosy": Nosy(),
    }


@examples(8)
@given(cases(num_replicas=st.sampled_from([2, 3])), st.booleans(), st.sampled_from([0, 10_000, 3_000_000]))
def test_what_the_router_sees_and_does_is_the_same_compressed_and_stepped(
    case: Case, is_flat: bool, reading_ns: int
) -> None:
    price = {"cost_model": FlatCost(10_000)} if is_flat else {}
    stepped, compressed = Nosy(), Nosy()
    runs = [
        simulate_case(case, rule=rule, compress=rule is compressed, reading_ns=reading_ns, **price)
        for rule in (stepped, compressed)
    ]
    for one, other in zip(*runs, strict=True):
        assert_same(one, other)
    assert stepped.seen == compressed.seen and len(stepped.seen) == 25


@examples(8)
@given(cases(num_replicas=3), st.permutations(range(3)), st.booleans())
def test_the_order_in_which_servers_are_stepped_changes_nothing(case: Case, order: list[int], is_flat: bool) -> None:
    price = {"cost_model": FlatCost(10_000)} if is_flat else {}  # many steps end at the same time
    runs = simulate_case(case, rule=Nosy(), **price)
    permuted = simulate_case(case, rule=Nosy(order=order), **price)
    for place, number in enumerate(order):
        assert_same(permuted[place], runs[number])


@examples(6)
@given(
    cases(num_replicas=st.sampled_from([2, 3]), arrivals=st.sampled_from(["open", "burst"])),
    st.booleans(),
    st.sampled_from([1, 2, 50]),
)
def test_servers_that_run_ahead_live_through_the_same_times(case: Case, is_flat: bool, ahead: int) -> None:
    price = {"cost_model": FlatCost(10_000)} if is_flat else {}
    for rule in (RoundRobin, Random):
        runs = [
            simulate_case(case, rule=rule(rule.options_type()), ahead=each, compress=compress, **price)
            for each, compress in ((0, True), (ahead, True), (ahead, False))
        ]
        for in_turn, alone, stepped in zip(*runs, strict=True):
            assert_same(in_turn, alone)
            assert_same(in_turn, stepped)


@examples(5)
@given(cases())
def test_a_fleet_of_one_is_a_server_without_a_router(case: Case) -> None:
    alone = simulate_case(case)
    for rule in rules().values():
        assert_same(simulate_case(case, rule=rule, alone=False)[0], alone[0])


@examples(10)
@given(cases(num_replicas=st.sampled_from([2, 4])), st.sampled_from(sorted(rules())))
def test_every_request_is_served_once_and_counted_back_to_nothing(case: Case, name: str) -> None:
    rule = rules()[name]
    runs = simulate_case(case, rule=rule)
    served = [row for run in runs for row in np.flatnonzero(run.requests["status"] == "finished")]
    assert sorted(served) == list(range(len(make_trace(case).table)))


def finished(run: RecordedRun) -> list[int]:
    return np.flatnonzero(run.requests["status"] == "finished").tolist()


@pytest.mark.parametrize("compress", [True, False])
def test_a_server_is_chosen_at_the_arrival_and_not_when_its_step_ends(compress: bool) -> None:
    # Steps take 1 ms. Rows 0 and 1 run on servers 0 and 1; row 0 ends at 3 ms. Row 2 comes at 2.5 ms, when both have a
    # request, and goes to server 0; row 3 comes at 2.6 ms, when server 1 has fewer. At 3 ms it would be otherwise.
    trace = simple_trace([4] * 4, [3, 50, 5, 5])
    times = np.array([0, 0, 2_500_000, 2_600_000])
    runs = simulate(
        trace, OpenLoop(times), [make(4), make(4)], FlatCost(1_000_000), rule=LeastRequests(NoOptions()),
        compress=compress,
    )  # fmt: skip
    assert [finished(run) for run in runs] == [[0, 2], [1, 3]]
    assert runs[0].requests["first_scheduled_time"][2] == pytest.approx(0.003)
    assert runs[1].requests["first_scheduled_time"][3] == pytest.approx(0.003)


@pytest.mark.parametrize("compress", [True, False])
def test_a_request_that_ends_when_another_arrives_counts_no_more(compress: bool) -> None:
    trace = simple_trace([4] * 3, [3, 50, 5])
    times = np.array([0, 0, 3_000_000])  # row 0 ends just then
    rule = Nosy()
    simulate(trace, OpenLoop(times), [make(4), make(4)], FlatCost(1_000_000), rule=rule, compress=compress)
    (_, _, first, second) = rule.seen[2]
    assert first[:4] == (0, 0, 0, 0) and second[:4] == (1, 4, 0, 1)


def test_what_servers_tell_is_as_old_as_the_last_reading_and_the_routers_own_accounts_are_not() -> None:
    """Steps take 1 ms, and metrics are read at 0, 4, 8 ... ms; requests come at 1, 3, 4 and 5 ms."""
    trace = simple_trace([4] * 4, [50] * 4)
    times = np.array([1, 3, 4, 5]) * 1_000_000
    rule = Nosy()
    servers = [make(4, num_blocks=100), make(4, num_blocks=100)]
    simulate(trace, OpenLoop(times), servers, FlatCost(1_000_000), rule=rule, reading_ns=4_000_000)
    told = [[view[2:5] for view in views] for _, _, *views in rule.seen]
    idle = (0, 0, 100)
    assert told[0] == told[1] == [idle, idle]  # as read at 0 ms
    # At 4 ms row 0 has had three steps and is in its second block; row 1 came at 3 ms and has had one.
    assert told[2] == told[3] == [(0, 2, 97), idle]
    assert [[view[0] for view in views] for _, _, *views in rule.seen] == [[0, 0], [1, 0], [2, 0], [2, 1]]


@pytest.mark.parametrize(
    ("plans_ahead", "num_tokens", "told"),
    [
        (False, 9, [(0, 0), (0, 1), (0, 2)]),  # row 1, which comes while the first step runs, is not told at its end
        (True, 9, [(0, 0), (0, 1), (0, 2)]),
        (False, 1, [(0, 0), (0, 0), (0, 0)]),
        (True, 1, [(0, 0), (0, 1), (0, 0)]),  # a step of nothing follows the first, and tells that row 1 runs
    ],
)
def test_what_a_server_sends_with_its_steps_is_how_it_was_when_the_last_one_had_ended(
    plans_ahead: bool, num_tokens: int, told: list[tuple[int, int]]
) -> None:
    """Steps take 10 ms. Rows 0 and 1 come to the first server at 1 and 5 ms; the others see what was read at 10, 20 and
    30 ms of steps that ended at 11 and 21 ms."""

    class Split(Nosy):
        def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
            super().choose(request, servers)
            return int(request.request_id > 1)

    times = np.array([1, 5, 19, 29, 39]) * 1_000_000
    trace = simple_trace([4] * 5, [num_tokens] * 2 + [1] * 3)
    rule, servers = Split(), [make(4, num_blocks=100, async_scheduling=plans_ahead) for _ in range(2)]
    cost = FlatCost(10_000_000)
    simulate(trace, OpenLoop(times), servers, cost, rule=rule, reading_ns=10_000_000, reads_steps=True)
    assert [views[0][2:4] for _, _, *views in rule.seen[2:]] == told


def test_conversations_stay_where_their_prefix_is() -> None:
    """Several requests are under way at a time, so that load alone would send a conversation to all servers."""
    num_turns, num_sessions = 6, 4
    turns = np.repeat(np.arange(num_turns), num_sessions)
    rng = np.random.default_rng(0)
    sessions = np.concatenate([rng.permutation(num_sessions) for _ in range(num_turns)])
    trace = simple_trace((8 * (turns + 1)).tolist(), [4] * len(turns), session_id=sessions)
    cached, places = {}, {}
    for name in ("turn", "prefix"):
        arrivals = OpenLoop(np.arange(len(turns)) * 1_000_000)
        runs = simulate(trace, arrivals, [make(4) for _ in range(3)], FlatCost(1_000_000), rule=rules()[name])
        cached[name] = sum(run.requests["num_cached_tokens"].sum() for run in runs)
        served = [set(sessions[finished(run)].tolist()) for run in runs]
        places[name] = sum(map(len, served)), sum(map(bool, served))
    assert places["turn"][0] >= 10  # conversations were on nearly every server
    assert places["prefix"] == (num_sessions, 3)  # each was on one, and all servers were used
    assert cached["prefix"] > 2 * cached["turn"]


def test_what_a_router_knows_of_a_cache_are_the_prompts_and_not_what_was_generated() -> None:
    rule = Nosy()
    trace = simple_trace([8, 24], [8, 8], session_id=[0, 0])  # the second prompt is the first, its answer and 8 more
    simulate(trace, OpenLoop(np.array([0, 10**9])), [make(4), make(4)], FlatCost(1000), rule=rule)
    (_, _, *views) = rule.seen[1]
    assert sorted(view[5] for view in views) == [0, 8]
