"""Beams: forks that decode in step, continue one another, and are preempted and admitted again together."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.core.policies import POLICIES
from engine.core.running.beams import in_place, suspend
from engine.core.scheduler import Scheduler
from engine.core.sequence import Request, RequestRefusedError, SequenceStatus
from tests.engine.core.builders import chunks, make, run, step


def beams(num_prompt_tokens: int, max_tokens: int = 12, width: int = 3, **settings: Any) -> tuple[Scheduler, Request]:
    """A request whose beams have their first token; blocks have four tokens."""
    scheduler = make(**settings)
    request = Request(0, num_prompt_tokens, max_tokens, num_sequences=width, is_beam_search=True)
    scheduler.add(request)
    step(scheduler)
    return scheduler, request


def test_the_first_child_of_a_beam_takes_its_place() -> None:
    assert in_place([2, 2, 0, 2]) == [2, 1, 0, 3]
    assert in_place([0, 1, 2]) == [0, 1, 2] and in_place([1, 1, 1]) == [1, 0, 2]
    rng = random.Random(0)
    for _ in range(200):
        parents = [rng.randrange(5) for _ in range(5)]
        children = in_place(parents)
        placed = [parents[child] for child in children]
        assert sorted(children) == [0, 1, 2, 3, 4] and all(placed[parent] == parent for parent in placed)


def test_a_beam_that_continues_another_shares_its_blocks_and_copies_the_last() -> None:
    scheduler, request = beams(10)
    first, second, third = request.sequences
    step(scheduler, 1)  # each writes into a copy of the third block
    assert scheduler.blocks.num_used_blocks() == 2 + 3
    scheduler.replace_beams(request, [0, 0, 2])
    scheduler.check_integrity()
    assert second.block_table == first.block_table != third.block_table
    assert scheduler.blocks.num_used_blocks() == 2 + 2
    plan = step(scheduler, 2)
    assert len(plan.transfers) == 1 and plan.horizon == 1
    assert second.block_table[:2] == first.block_table[:2] and second.block_table[2] != first.block_table[2]


def test_beams_share_what_they_had_in_common_and_grow_their_own_blocks() -> None:
    scheduler, request = beams(8, max_tokens=30)
    for now in range(1, 10):
        outcome_plan = scheduler.schedule(now)
        assert outcome_plan is not None
        outcome = scheduler.commit(outcome_plan, now + 1)
        assert outcome.beams == [request]
        scheduler.replace_beams(request, [0, 0, 0])
        scheduler.check_integrity()
    assert scheduler.blocks.num_used_blocks() == 5, "all are the same sequence of 18 tokens, 17 of them computed"


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"admission_order"}))
def test_beams_are_preempted_and_come_back_together(policy: str) -> None:
    scheduler = make(policy, num_blocks=16, max_num_batched_tokens=11)
    rng = random.Random(0)
    requests = [Request(i, 7, 16, num_sequences=3, is_beam_search=True) for i in range(3)]
    for request in requests:
        scheduler.add(request)
    now = num_preemptions = 0
    while (plan := scheduler.schedule(now)) is not None:
        num_preemptions += len(plan.preempted)
        assert len(plan.preempted) % 3 == 0 or any(len(s.request.sequences) == 1 for s in plan.preempted)
        now += 1
        outcome = scheduler.commit(plan, now)
        for request in outcome.beams:
            parents = [rng.randrange(3) for _ in range(3)]
            scheduler.replace_beams(request, [parents[child] for child in in_place(parents)])
        scheduler.check_integrity()
        assert now < 2000
    assert num_preemptions and all(request.num_output_tokens == 48 for request in requests)
    assert scheduler.blocks.num_used_blocks() == 0 and not scheduler.unfinished


def test_a_pool_that_holds_only_shared_beams_ends_them_early() -> None:
    scheduler, request = beams(8, max_tokens=50, num_blocks=8)
    for now in range(1, 100):
        plan = scheduler.schedule(now)
        if plan is None:
            break
        scheduler.commit(plan, now + 1)
        scheduler.check_integrity()
    assert [s.num_tokens for s in request.sequences] == [17] * 3, "2 blocks of the prompt, 2 of each"
    with pytest.raises(RequestRefusedError, match="exceed the limit of 29 tokens"):
        scheduler.add(Request(1, 30, 5, num_sequences=3, is_beam_search=True))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"async_scheduling": True}, "async_scheduling: beams"), ({"policy": "admission_order"}, "policy: it lets")],
)
def test_beams_are_refused_where_they_cannot_stay_together(settings: dict[str, Any], reason: str) -> None:
    scheduler = make(**settings)
    with pytest.raises(RequestRefusedError, match=f"beam search: {reason}"):
        scheduler.add(Request(0, 4, 4, num_sequences=2, is_beam_search=True))
    with pytest.raises(RequestRefusedError, match="9 sequences: must be from 1 to 8"):
        make().add(Request(0, 4, 4, num_sequences=9, is_beam_search=True))


def test_abort_takes_out_beams_that_wait_to_come_back() -> None:
    scheduler, request = beams(8, max_tokens=20, num_blocks=12)
    running = scheduler._planners[0].running
    for now in range(1, 6):
        step(scheduler, now)
    suspend(running, scheduler.blocks, request, "nothing")
    scheduler.check_integrity()
    assert request.num_common_blocks == 2 and scheduler.num_waiting == 1 and not scheduler.num_running
    scheduler.abort(0)
    scheduler.check_integrity()
    assert {sequence.status for sequence in request.sequences} == {SequenceStatus.ABORTED}
    assert not scheduler.num_waiting and scheduler.schedule(9) is None


@pytest.mark.parametrize("caching", [True, False])
def test_a_beam_that_waits_for_the_others_and_gives_way_computes_its_last_block_again(caching: bool) -> None:
    scheduler, request = beams(8, max_tokens=20, num_blocks=20, enable_prefix_caching=caching)
    running = scheduler._planners[0].running
    for now in range(1, 4):
        step(scheduler, now)
    suspend(running, scheduler.blocks, request, "nothing")
    assert chunks(step(scheduler, 4))[0][2] == 12 - 8 * caching and {*running.gathering} == {request.sequences[0]}
    suspend(running, scheduler.blocks, request, "prefix")
    scheduler.check_integrity()
    assert [sequence.num_computed_tokens for sequence in request.sequences] == [8, 8, 8]
    assert len(list(run(scheduler))) < 25 and request.num_output_tokens == 60


def test_readmitted_beams_that_all_compute_do_not_give_way_to_a_prompt_of_the_same_step() -> None:
    scheduler = make(
        num_blocks=26, block_size=2, preemption="partial", allocation="chunk", victim="last",
        long_prefill_token_threshold=1, enable_prefix_caching=False,
    )  # fmt: skip
    for i, (num_prompt_tokens, max_tokens) in enumerate([(10, 10), (27, 24), (18, 16)]):
        scheduler.add(Request(i, num_prompt_tokens, max_tokens, num_sequences=2, is_beam_search=True))
    scheduler.add(Request(3, 12, 3))
    assert all(run(scheduler)) and not scheduler.unfinished


def test_readmitted_beams_compute_their_common_blocks_once() -> None:
    scheduler, request = beams(8, max_tokens=20, num_blocks=20, enable_prefix_caching=False)
    for now in range(1, 6):
        step(scheduler, now)
    suspend(scheduler._planners[0].running, scheduler.blocks, request, "nothing")
    assert chunks(step(scheduler, 6)) == [(0, 0, 14)]
    assert chunks(step(scheduler, 7)) == [(0, 8, 6), (0, 8, 6)]
    assert [sequence.num_output_tokens for sequence in request.sequences] == [7, 7, 7]
    assert step(scheduler, 8).num_decodes == 3


def test_readmitted_beams_with_nothing_in_common_compute_side_by_side() -> None:
    scheduler, request = beams(3, max_tokens=20, enable_prefix_caching=False, long_prefill_token_threshold=5)
    for now in range(1, 6):
        step(scheduler, now)
    suspend(scheduler._planners[0].running, scheduler.blocks, request, "nothing")
    assert request.num_common_blocks == 0
    assert [chunks(step(scheduler, now)) for now in (6, 7, 8)] == [
        [(0, 0, 5)],
        [(0, 5, 4), (0, 0, 5), (0, 0, 5)],
        [(0, 5, 4), (0, 5, 4)],
    ]
    assert step(scheduler, 9).num_decodes == 3
