"""Policies with an order of their own, each against what the literature says of it: priority, sjf and edf."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from engine.core.decodes.unforeseen import UnforeseenDecodes
from engine.core.scheduler import Scheduler
from engine.core.sequence import Request
from tests.engine.core.builders import bare_sequence, chunks, ids, make, run, step
from tests.selection import few

NS = 1e-9  # a step takes as long in these tests


def serve(policy: str, requests: list[Request], **given: Any) -> Scheduler:
    """Serve requests, each added at its arrival, to the end."""
    scheduler, queue, now = make(policy, **given), sorted(requests, key=lambda r: r.arrival_time), 0
    while queue or scheduler.unfinished:
        while queue and queue[0].arrival_time <= now:
            scheduler.add(queue.pop(0))
        plan = scheduler.schedule(now)
        now += 1
        if plan is not None:
            scheduler.commit(plan, now)
            scheduler.check_integrity()
    return scheduler


def finish(request: Request) -> int:
    assert request.finish_time is not None
    return request.finish_time


def jobs(seed: int) -> list[Request]:
    rng = random.Random(seed)
    return [Request(i, rng.randint(1, 9), rng.randint(1, 40), deadline=rng.randint(1, 400)) for i in range(20)]


# -- one seat: theorems on a single machine ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", few(range(5), 2))
def test_shortest_first_minimises_the_mean_completion(seed: int) -> None:
    """Smith 1956. A prediction that is off does worse, and none at all, which is first come first served, worst."""
    means = {}
    for name, error in (("exact", 0.0), ("off", 0.5)):
        served = jobs(seed)
        serve("sjf", served, max_num_seqs=1, options={"relative_error": error})
        means[name] = sum(map(finish, served)) / len(served)
    served = jobs(seed)
    serve("mixed", served, max_num_seqs=1)
    means["fcfs"] = sum(map(finish, served)) / len(served)
    assert means["exact"] < means["off"] < means["fcfs"]


@pytest.mark.parametrize("seed", few(range(5), 2))
def test_earliest_deadline_first_minimises_the_worst_lateness(seed: int) -> None:
    """Jackson 1955."""
    worst = {}
    for policy in ("edf", "sjf", "mixed"):
        served = jobs(seed)
        serve(policy, served, max_num_seqs=1)
        worst[policy] = max(finish(request) - (request.deadline or 0) for request in served)
    assert worst["edf"] == min(worst.values()) < worst["mixed"]


def test_without_deadlines_the_slo_says_who_is_due_first() -> None:
    requests = [Request(0, 4, 9), Request(1, 4, 3), Request(2, 4, 5, deadline=1), Request(3, 4, 3)]
    scheduler = make("edf", max_num_seqs=1, options={"ttft_s": 5 * NS, "tpot_s": 2 * NS})
    for request in requests:
        scheduler.add(request)
    assert [ids(plan.admitted) for plan in run(scheduler) if plan.admitted] == [[2], [1], [3], [0]]


def test_predictions_have_the_error_that_is_set_and_are_the_same_in_every_run() -> None:
    lengths = []
    for _ in range(2):
        scheduler = make("sjf", options={"relative_error": 0.5})
        order = scheduler.waiting._order
        lengths.append([order(bare_sequence(i, 1, 1000)) for i in range(2000)])
    assert lengths[0] == lengths[1]
    within = sum(1000 / 1.5 < length < 1000 * 1.5 for length in lengths[0]) / 2000
    assert within == pytest.approx(0.683, abs=0.03), "one standard deviation"
    assert sum(length < 1000 for length in lengths[0]) / 2000 == pytest.approx(0.5, abs=0.03)


# -- nobody starves ---------------------------------------------------------------------------------------------------


def stream(policy: str, options: dict[str, Any]) -> int:
    """When a long request of low priority ends that comes first into a stream which takes the only seat for good."""
    served = [Request(0, 4, 20, 1, priority=1), *(Request(i, 4, 5, 5 * (i - 1), priority=0) for i in range(1, 100))]
    serve(policy, served, max_num_seqs=1, options=options)
    return finish(served[0])


@pytest.mark.parametrize(
    ("policy", "none", "some"),
    [
        ("priority", {"ageing_s": None}, {"ageing_s": 100 * NS}),
        ("sjf", {}, {"ageing_tokens_per_s": 0.2 / NS}),
        ("edf", {"ttft_s": 0.0, "tpot_s": 1.0}, {"ttft_s": 0.0, "tpot_s": 7 * NS}),
    ],
)
def test_with_ageing_nobody_starves(policy: str, none: dict[str, Any], some: dict[str, Any]) -> None:
    assert stream(policy, none) > 400, "all of the stream comes first"
    assert stream(policy, some) < 200


@pytest.mark.parametrize("seed", range(5))
def test_nobody_who_comes_after_the_time_that_makes_up_for_priority_is_served_before(seed: int) -> None:
    rng, ageing = random.Random(seed), 30
    served = [Request(i, rng.randint(1, 9), rng.randint(1, 9), 3 * i, priority=rng.randint(0, 3)) for i in range(60)]
    serve("priority", served, max_num_seqs=1, options={"ageing_s": ageing * NS})
    for one, other in itertools.permutations(served, 2):
        makes_up = one.arrival_time + ageing * (one.priority - other.priority) < other.arrival_time
        if one.arrival_time < other.arrival_time and makes_up:
            assert finish(one) < finish(other)


# -- priority: who is more urgent takes the place of others -----------------------------------------------------------


@pytest.mark.parametrize("given", [{"max_num_seqs": 2}, {"num_blocks": 6}])
def test_an_urgent_request_takes_the_place_of_the_last_in_rank(given: dict[str, int]) -> None:
    """Seats or blocks are all taken by requests 0 and 1, and request 1 has to give way."""
    scheduler = make("priority", options={"ageing_s": None}, **given)
    for i in range(2):
        scheduler.add(Request(i, 10, 8, priority=1 + i))
    step(scheduler)
    scheduler.add(Request(2, 8, 2, priority=0))
    plan = scheduler.schedule(1)
    assert plan is not None
    assert (ids(plan.admitted), ids(plan.preempted), ids([*plan.decodes])) == ([2], [1], [0])
    scheduler.commit(plan, 2)
    assert 1 in ids([sequence for plan in run(scheduler) for sequence in plan.admitted])


def test_nobody_gives_way_where_drafts_leave_no_tokens() -> None:
    """Two decodes with three drafts each have all eight tokens of a step."""
    scheduler = make(
        "priority", max_num_batched_tokens=8, max_num_seqs=2, options={"ageing_s": None},
        make_decodes=lambda block_size, longest: UnforeseenDecodes(block_size, longest, 3),
    )  # fmt: skip
    for i in range(2):
        scheduler.add(Request(i, 4, 8, priority=1, token_ids=[1] * 4))
    step(scheduler)
    scheduler.add(Request(2, 4, 2, token_ids=[2] * 4))
    plan = scheduler.schedule(1)
    assert plan is not None and not plan.preempted and not plan.admitted and len([*plan.decodes]) == 2


def test_who_waits_gives_up_blocks_before_anybody_who_runs_gives_way() -> None:
    """Request 2 gave way to the decodes of the others, and keeps one block of its three."""
    scheduler = make("priority", num_blocks=10, preemption="partial", options={"ageing_s": None})
    for i, num_prompt_tokens in enumerate((20, 8, 12)):
        scheduler.add(Request(i, num_prompt_tokens, 30, priority=1 + i))
    step(scheduler)
    assert ids(step(scheduler, 1).preempted) == [2] and [len(s.block_table) for s in scheduler.waiting] == [1]
    scheduler.add(Request(3, 3, 1, priority=0))
    plan = step(scheduler, 2)
    assert (ids(plan.admitted), plan.preempted) == ([3], []) and not scheduler.waiting.holders


@pytest.mark.parametrize("num_running", [1, 2, 3])
@pytest.mark.parametrize("num_urgent", [1, 2])
def test_no_more_give_way_than_those_for_whom_there_is_no_seat(num_running: int, num_urgent: int) -> None:
    scheduler = make("priority", max_num_seqs=3, options={"ageing_s": None})
    for i in range(num_running):
        scheduler.add(Request(i, 4, 30, priority=1 + i))
    step(scheduler)
    for i in range(num_urgent):
        scheduler.add(Request(10 + i, 4, 2))
    plan = step(scheduler, 1)
    num_victims = max(0, num_running + num_urgent - 3)
    assert ids(plan.preempted) == [*range(num_running)][::-1][:num_victims] and len(plan.admitted) == num_urgent


def test_several_urgent_requests_take_places_in_one_step_free_ones_first() -> None:
    scheduler = make("priority", max_num_seqs=4, options={"ageing_s": None})
    for i in range(3):
        scheduler.add(Request(i, 4, 30, priority=1 + i))
    step(scheduler)
    for i in range(3, 6):
        scheduler.add(Request(i, 4, 2))
    plan = step(scheduler)
    assert (ids(plan.admitted), ids(plan.preempted)) == ([3, 4, 5], [2, 1])


def test_nobody_gives_way_for_a_request_that_would_not_fit_all_the_same() -> None:
    scheduler = make("priority", num_blocks=10, options={"ageing_s": None})
    scheduler.add(Request(0, 20, 15, priority=0))
    scheduler.add(Request(1, 4, 15, priority=2))
    step(scheduler)
    scheduler.add(Request(2, 30, 2, priority=1))
    plan = step(scheduler)
    assert not plan.preempted and plan.num_decodes == 2


def test_who_makes_way_does_not_come_back_before_its_token_that_is_under_way() -> None:
    """The urgent ones share two blocks, so that they take four of the six that each would need alone."""
    scheduler = make("priority", num_blocks=7, async_scheduling=True)
    scheduler.add(Request(0, 5, 9, token_ids=[1] * 5, priority=5))
    first, second = scheduler.schedule(0), scheduler.schedule(0)
    assert first is not None and second is not None
    scheduler.commit(first, 1)
    for i in (1, 2):
        scheduler.add(Request(i, 9, 2, token_ids=[2] * 9))
    third = scheduler.schedule(1)
    assert third is not None and (ids(third.preempted), ids(third.admitted)) == ([0], [1, 2])
    scheduler.commit(second, 2)
    fourth = scheduler.schedule(2)
    assert fourth is not None and ids(fourth.admitted) == [0]


@pytest.mark.parametrize(
    ("seats", "there", "urgent", "preempted"),
    [
        (3, [(12, 3, 1)], [(4, 3, 0)], [0]),
        (2, [(40, 1, 0), (1, 1, 5)], [(4, 1, 1)], []),
        (2, [(1, 1, 5), (1, 1, 5)], [(8, 1, 1), (8, 1, 1)], [1]),
    ],
    ids=["seats of forks are free as well", "a prompt goes on with all tokens", "the first takes all tokens"],
)
def test_as_many_give_way_as_the_step_has_tokens_for(
    seats: int, there: list[tuple[int, int, int]], urgent: list[tuple[int, int, int]], preempted: list[int]
) -> None:
    """Requests are prompt tokens, sequences and priority; a step has eight tokens, and seven of a prompt."""
    scheduler = make("priority", max_num_seqs=seats, max_num_batched_tokens=8, long_prefill_token_threshold=7)
    for i, (num_prompt_tokens, num_sequences, priority) in enumerate([*there, *urgent]):
        if i == len(there):
            step(scheduler)
        scheduler.add(Request(i, num_prompt_tokens, 5, num_sequences=num_sequences, priority=priority))
    plan = step(scheduler, 1)
    assert ids(plan.preempted) == preempted and len(plan.admitted) == len(preempted)


def test_no_more_give_way_than_the_first_chunk_needs() -> None:
    """Beside two decodes it has two tokens of the four that a step has; request 1 holds four blocks."""
    scheduler = make("priority", num_blocks=16, block_size=1, max_num_batched_tokens=4, max_num_seqs=4,
                     allocation="chunk", admission="first_chunk")  # fmt: skip
    for i, num_prompt_tokens in enumerate([10, 2]):
        scheduler.add(Request(i, num_prompt_tokens, 6, priority=1))
    for now in range(5):
        step(scheduler, now)
    assert scheduler.blocks.num_free_blocks == 0
    scheduler.add(Request(2, 10, 2))
    plan = step(scheduler, 5)
    assert ids(plan.preempted) == [1] and chunks(plan) == [(2, 0, 3)]


def test_steps_run_on_while_the_head_outranks_nobody() -> None:
    scheduler = make("priority", max_num_seqs=2)
    for i in range(3):
        scheduler.add(Request(i, 4, 30, priority=i))
    step(scheduler)
    plan = scheduler.schedule(1)
    assert plan is not None and plan.horizon > 20


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("mixed", {"ageing_s": 1}, "options.ageing_s: policy=mixed has no such setting (allowed here: none)"),
        ("priority", {"age": 1}, "options.age: policy=priority has no such setting (allowed here: ageing_s)"),
        ("priority", {"ageing_s": "1"}, "options.ageing_s='1': must be a number or null"),
        ("priority", {"ageing_s": float("inf")}, "options.ageing_s=inf: must be a number or null"),
        ("priority", {"ageing_s": -1}, "options.ageing_s=-1: must be >= 0 and <= 1e6, or null"),
        ("sjf", {"relative_error": True}, "options.relative_error=True: must be a number"),
        ("sjf", {"relative_error": 11}, "options.relative_error=11: must be >= 0 and <= 10"),
        ("edf", {"tpot_s": None}, "options.tpot_s=None: must be a number"),
        ("fair", {"input_weight": 0.5}, "options.input_weight=0.5: must be an integer"),
        ("fair", {"input_weight": -1}, "options.input_weight=-1: must be >= 0 and <= 1000000"),
        ("static", {"max_queue_delay_s": -1}, "options.max_queue_delay_s=-1: must be >= 0 and <= 1e6"),
    ],
)
def test_settings_are_those_that_the_policy_declares(policy: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        make(policy, options=options)
    assert str(error.value) == message
