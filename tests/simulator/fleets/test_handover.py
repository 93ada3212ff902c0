"""Prompts and decodes on servers of their own: when the KV comes, what is held so long, and that nothing is lost."""

from __future__ import annotations

from collections import abc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.planning.policy_options import NoOptions
from engine.core.routing.round_robin import RoundRobin
from engine.core.routing.router import BaseRouter, ServerView
from engine.core.scheduler import Scheduler
from engine.core.sequence import Request
from harness.record.record import RecordedRun
from harness.workload.arrivals import OpenLoop
from harness.workload.trace import Trace
from simulator.fleets.handover import Network, note_prompt, prompt_of
from simulator.versions.front_end import FrontEndTimes
from tests.selection import examples
from tests.simulator.fleets.builders import BY_LAYERS, MS, SLOW, STEP, Nosy, apart_cases, networks, two
from tests.simulator.replicas import FlatCost, assert_same, make, simulate, simulate_case
from tests.simulator.workloads import Case, make_trace, simple_trace

FRONT_END = FrontEndTimes(300_000, 1000.0, 2_000_000, 0.5)


@examples(10)
@given(apart_cases(), networks, st.sampled_from([0, 20]), st.booleans(), st.sampled_from([None, FRONT_END]))
def test_compressed_is_stepped(
    case: Case, network: Network, local_tokens: int, is_flat: bool, front_end: FrontEndTimes | None
) -> None:
    price = {"cost_model": FlatCost(10_000)} if is_flat else {}
    rules = [(Nosy(), Nosy()) for _ in range(2)]
    runs = [
        simulate_case(
            case, rule=rule, decode_rule=decode_rule, compress=compress, network=network, local_tokens=local_tokens,
            num_prefill=case.num_replicas // 2, second_front_end=front_end, **price,
        )
        for compress, (rule, decode_rule) in zip((True, False), rules, strict=True)
    ]  # fmt: skip
    for one, other in zip(*runs, strict=True):
        assert_same(one, other)
    assert [rule.seen for rule in rules[0]] == [rule.seen for rule in rules[1]]


@examples(8)
@given(apart_cases().filter(lambda case: case.num_replicas > 3), st.booleans(), st.sampled_from([SLOW, BY_LAYERS]))
def test_the_order_in_which_servers_are_stepped_changes_nothing(case: Case, is_flat: bool, network: Network) -> None:
    price = {"cost_model": FlatCost(10_000)} if is_flat else {}
    orders = [1, 0], [2, 0, 1]
    runs = simulate_case(case, rule=Nosy(), decode_rule=Nosy(), num_prefill=2, network=network, **price)
    rules = [Nosy(order=order) for order in orders]
    permuted = simulate_case(case, rule=rules[0], decode_rule=rules[1], num_prefill=2, network=network, **price)
    for place, number in enumerate([*orders[0], *(2 + number for number in orders[1])]):
        left, right = permuted[place].requests, runs[number].requests
        columns = [name for name in left if name != "prefill_server"]
        assert (left[columns].fillna(-1) == right[columns].fillna(-1)).all(axis=None)


@examples(10)
@given(apart_cases(), networks, st.sampled_from([0, 20]))
def test_every_request_ends_once_and_no_block_is_held_for_ever(case: Case, network: Network, local_tokens: int) -> None:
    schedulers: list[Scheduler] = []

    def noted(self: Case, trace: Trace) -> Scheduler:
        schedulers.append(plain(self, trace))
        return schedulers[-1]

    plain = Case.make_scheduler
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Case, "make_scheduler", noted)
        runs = simulate_case(case, num_prefill=1, network=network, local_tokens=local_tokens)
    assert all(each.blocks.num_used_blocks() == 0 for each in schedulers)
    table = make_trace(case).table
    served = [row for run in runs for row in np.flatnonzero(run.requests["status"] == "finished")]
    assert sorted(served) == list(range(len(table)))
    output = sum(run.requests["num_output_tokens"].sum() for run in runs)
    assert output == table["num_output_tokens"].sum()
    prompts = table["num_prompt_tokens"].to_numpy()
    first = runs[0]
    if local_tokens:
        return
    cached = sum(run.requests["num_cached_tokens"].sum() for run in runs[1:])
    if not first.steps["num_preempted"].sum():  # who gave way can find more than it had computed
        assert first.steps["num_prefill_tokens"].sum() == prompts.sum() - cached
    decoders = sum(run.steps["num_prefill_tokens"].sum() for run in runs[1:])
    if not any(run.steps["num_preempted"].sum() for run in runs[1:]):
        assert decoders == len(table)  # the last token of each prompt
    assert sum(run.steps["num_first_admitted_tokens"].sum() for run in runs) == prompts.sum()


@pytest.mark.parametrize("compress", [True, False])
def test_a_request_by_hand(compress: bool) -> None:
    """10 tokens are 3 blocks: computed at 1 ms, queued at 1.05, copied at 1.351; tokens at 2.351, 3.351 and 4.351."""
    first, second = two([10], [3], [0], compress=compress)
    (row,) = second.requests.itertuples()
    assert row.first_scheduled_time == 0 and row.first_token_time == pytest.approx(0.002351)
    assert row.finish_time == pytest.approx(0.004351) and row.num_output_tokens == 3
    assert row.parked_time == pytest.approx(0.000301)
    assert first.requests["prefill_end_time"].tolist() == pytest.approx([0.001])
    assert first.steps["num_prefill_tokens"].tolist() == [10]
    assert second.steps["num_prefill_tokens"].sum() == 1


def test_transfers_that_share_a_link_follow_one_another() -> None:
    runs = two([10, 10], [1, 1], [0, 0])
    assert runs[1].requests["parked_time"].tolist() == pytest.approx([0.000301, 0.001301])  # 0.601, seen after a step
    first, second, third = simulate(
        simple_trace([10, 10], [1, 1]), OpenLoop(np.array([0, 0])), [make(4) for _ in range(3)], STEP, num_prefill=1,
        network=SLOW, decode_rule=RoundRobin(NoOptions()),
    )  # fmt: skip
    assert second.requests["parked_time"][0] == pytest.approx(0.000301)
    assert third.requests["parked_time"][1] == pytest.approx(0.000601)  # the sender's link is the same


def test_blocks_are_held_until_they_are_copied_and_no_longer() -> None:
    """The pool of the first server has room for one prompt: the next is computed when the first is copied."""
    first, _ = two([12, 12], [1, 1], [0, 0], [make(4, num_blocks=4), make(4)])
    begins = first.steps["start_time"].to_numpy()
    assert begins.tolist() == pytest.approx([0, 0.001351])  # 1.05 in the queue, 0.3 on the link, 1 us of latency


def test_the_decoding_server_takes_a_prompt_when_it_has_blocks_for_all_of_it() -> None:
    second = two([12, 12], [10, 2], [0, 0], [make(4), make(4, num_blocks=6)])[1]
    times = second.requests
    assert times["first_token_time"][1] > times["finish_time"][0]


def test_what_the_decoding_server_has_cached_is_not_copied() -> None:
    """The second turn of a conversation repeats the first, whose blocks both servers have."""
    trace = simple_trace([16, 32], [4, 4], session_id=[0, 0])
    runs = simulate(trace, OpenLoop(np.array([0, 100 * MS])), [make(4), make(4)], STEP, num_prefill=1, network=SLOW)
    parked = runs[1].requests["parked_time"].tolist()
    assert parked == pytest.approx([0.000401, 0.000401])  # 4 of 4 blocks, then 4 of 8
    assert runs[1].requests["num_cached_tokens"].tolist() == [0, 16]  # of the server that computed it


def test_short_prompts_and_those_that_are_known_stay_with_the_decoding_server() -> None:
    trace = simple_trace([8, 40, 48], [4, 4, 4], session_id=[1, 0, 0])
    times = OpenLoop(np.array([0, 0, 100 * MS]))
    first, second = simulate(trace, times, [make(4), make(4)], STEP, num_prefill=1, network=SLOW, local_tokens=8)
    assert first.steps["num_prefill_tokens"].tolist() == [40]
    assert second.requests["num_output_tokens"].tolist() == [4, 4, 4]
    assert second.steps["num_prefill_tokens"].sum() == 8 + 1 + 8  # of the last, what was never sent there


def test_a_short_prompt_goes_to_the_server_that_was_chosen_for_its_decodes() -> None:
    trace, times = simple_trace([8] * 4, [2] * 4), OpenLoop(np.arange(4) * 10 * MS)
    runs = simulate(
        trace, times, [make(4), make(4), make(4)], STEP, num_prefill=1, network=SLOW, local_tokens=8,
        decode_rule=RoundRobin(NoOptions()),
    )  # fmt: skip
    assert [int(run.steps["num_prefill_tokens"].sum()) for run in runs] == [0, 16, 16]


@pytest.mark.parametrize(("prompt", "output", "arrival_ms", "num_blocks"), [(16, 30, 0, 14), (1, 8, 4, 6)])
def test_who_gives_way_on_the_decoding_server_computes_its_prompt_there(
    prompt: int, output: int, arrival_ms: float, num_blocks: int
) -> None:
    """The second request gives way: while it decodes, or before it has computed the only token of its prompt."""
    schedulers = [make(4), make(4, num_blocks=num_blocks, watermark=0.0)]
    second = two([16, prompt], [output] * 2, [0, arrival_ms], schedulers)[1]
    assert second.requests["num_preemptions"][1] >= 1
    assert second.requests["num_output_tokens"].tolist() == [output] * 2
    assert second.steps["num_prefill_tokens"].max() >= prompt


def test_who_can_never_run_on_one_of_both_is_refused() -> None:
    first, second = two([40, 8], [2, 2], [0, 0], [make(4), make(4, num_blocks=8)])
    assert second.requests["status"].tolist() == ["rejected", "finished"]
    first, second = two([40, 8], [2, 2], [0, 0], [make(4, num_blocks=8), make(4)])
    assert first.requests["status"][0] == "rejected" and second.requests["status"][1] == "finished"


def at_once(num: int, schedulers: list[Scheduler], **options: Any) -> list[RecordedRun]:
    """So many prompts of 10 tokens at the same time."""
    times = OpenLoop(np.zeros(num, np.int64))
    return simulate(simple_trace([10] * num, [3] * num), times, schedulers, STEP, network=SLOW, **options)


def test_transfers_to_the_same_server_follow_one_another() -> None:
    runs = at_once(2, [make(4) for _ in range(3)], num_prefill=2)
    assert runs[2].requests["parked_time"].tolist() == pytest.approx([0.000301, 0.001301])  # 0.601, seen after a step
    runs = at_once(2, [make(4) for _ in range(4)], num_prefill=2)[2:]
    assert [run.requests["parked_time"][row] for row, run in enumerate(runs)] == pytest.approx([0.000301] * 2)


class Given(BaseRouter):
    """The server of each request, by its number."""

    def __init__(self, *servers: int) -> None:
        super().__init__(NoOptions())
        self._servers = servers

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        return self._servers[request.request_id]


def test_who_came_first_is_copied_first_whichever_server_asks() -> None:
    """Both servers for decodes end a step at 2.351 ms, the first one first, and then ask for the KV of rows 3 and 2."""
    trace = simple_trace([10, 10, 36, 36], [9, 9, 1, 1])
    runs = simulate(
        trace, OpenLoop(np.array([0, 0, 100, 100])), [make(4) for _ in range(4)], STEP, num_prefill=2, network=SLOW,
        rule=Given(0, 1, 0, 0), decode_rule=Given(0, 1, 1, 0),
    )  # fmt: skip
    assert runs[3].requests["parked_time"][2] == pytest.approx(0.001)  # 0.901, seen after a step
    assert runs[2].requests["parked_time"][3] == pytest.approx(0.002)  # 1.801


def test_who_came_first_is_handed_over_first_whichever_server_computed_it() -> None:
    runs = at_once(2, [make(4), make(4), make(1)], num_prefill=2, rule=Given(1, 0))
    finish = runs[2].requests["finish_time"]
    assert finish[0] < finish[1]


def test_who_is_handed_over_comes_before_who_arrives_at_that_time() -> None:
    trace = simple_trace([40, 4], [3, 3])
    network = Network(1e12)
    for compress in (True, False):
        second = simulate(
            trace, OpenLoop(np.array([0, MS])), [make(4), make(1)], STEP, num_prefill=1, network=network,
            local_tokens=4, compress=compress,
        )[1]  # fmt: skip
        assert second.requests["finish_time"][0] < second.requests["finish_time"][1]


def test_a_router_that_is_told_of_caches_knows_what_is_there_and_what_is_coming() -> None:
    """The pool of the second server, of 10 blocks of 4 tokens, loses the first prompt when the third session comes."""
    seen: list[list[tuple[int, int]]] = []

    class Told(BaseRouter):
        reads_caches = True

        def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
            seen.append([server.cached_tokens(request) for server in servers])
            return 1

    trace = simple_trace([16, 20, 16, 20, 24, 20], [1] * 6, session_id=[0, 0, 1, 1, 2, 0])
    times = OpenLoop(np.array([0, 100, 10 * MS, 15 * MS, 20 * MS, 30 * MS]))
    schedulers = [make(4), make(4, num_blocks=10)]
    simulate(trace, times, schedulers, STEP, rule=Told(NoOptions()))
    assert [servers[0] for servers in seen] == [(0, 0)] * 6
    assert [servers[1][0] for servers in seen] == [0, 16, 0, 16, 0, 0]


def test_a_prompt_elsewhere_is_ranked_and_routed_as_its_request() -> None:
    hashes, ranks = [1, 2], {"priority": -2, "tenant": 5, "session": 6, "deadline": 8, "reads_prefix_cache": False}
    request = Request(3, 40, 4, 7, block_hashes=hashes, **ranks)  # type: ignore[arg-type]
    prompt = prompt_of(request)
    assert {name: getattr(prompt, name) for name in ranks} == ranks
    assert (prompt.request_id, prompt.arrival_time, prompt.num_prompt_tokens, prompt.max_tokens) == (3, 7, 40, 1)
    assert prompt.decodes_elsewhere and prompt.sequences[0].block_hashes == hashes
    (computed,), (sequence,) = prompt.sequences, request.sequences
    computed.num_cached_tokens, computed.cached_by_tier = 16, {"host": 8}
    computed.num_recomputed_tokens, computed.num_preemptions, prompt.first_scheduled_time = 5, 2, 9
    note_prompt(request, prompt)
    assert (sequence.num_cached_tokens, sequence.cached_by_tier) == (16, {"host": 8})
    assert (request.num_recomputed_tokens, request.num_preemptions, request.first_scheduled_time) == (5, 2, 9)
