"""What each option of the scheduler changes, one by one; that they are sound together is the fuzz test's."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from engine.core.kv.block_manager import BlockManager
from engine.core.running.preemption import VICTIM_RULES
from engine.core.sequence import Request, RequestRefusedError
from tests.engine.core.builders import bare_sequence, chunks, ids, make, run, step
from tests.policies import ON_ANY_POOL


@pytest.mark.parametrize(("eviction", "takes_the_older"), [("unhashed_first", False), ("lru", True)])
def test_eviction_takes_unhashed_blocks_first_or_the_least_recently_used(eviction: Any, takes_the_older: bool) -> None:
    blocks = BlockManager(2, 4, eviction=eviction)
    hashed, unhashed = bare_sequence(0, 4, 1, block_hashes=[7]), bare_sequence(1, 4, 1)
    for sequence in (hashed, unhashed):
        blocks.admit(sequence, blocks.match(sequence), 4)
        blocks.register(sequence, 4 if sequence is hashed else 0)
    older = hashed.block_table
    for sequence in (hashed, unhashed):
        blocks.release(sequence)
    assert (blocks.take(1) == older) == takes_the_older
    assert bool(blocks.match(bare_sequence(2, 5, 1, block_hashes=[7])).blocks) != takes_the_older


def test_one_queue_hands_out_blocks_in_the_order_they_were_freed() -> None:
    blocks = BlockManager(6, 1, eviction="lru")
    first, second = bare_sequence(0, 2, 1, block_hashes=[1, 2]), bare_sequence(1, 3, 1)
    for sequence in (first, second):
        blocks.admit(sequence, blocks.match(sequence), sequence.num_tokens)
    assert first.block_table + second.block_table == [0, 1, 2, 3, 4]
    blocks.register(first, 2)
    for sequence in (second, first):
        blocks.release(sequence)
    assert [block for _ in range(6) for block in blocks.take(1)] == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(("full_hit", "start"), [("copy", 7), ("recompute_block", 4)])
def test_a_prompt_that_is_all_cached_computes_one_token_or_its_last_block(full_hit: str, start: int) -> None:
    scheduler = make(full_hit=full_hit)
    for i in range(2):
        scheduler.add(Request(i, 8, 1, block_hashes=[1, 2]))
        plan = step(scheduler)
    assert chunks(plan) == [(1, start, 8 - start)]


@pytest.mark.parametrize(("allocation", "used"), [("prompt", [5, 5, 5]), ("chunk", [2, 4, 5])])
def test_a_cut_prompt_gets_its_blocks_at_once_or_chunk_by_chunk(allocation: str, used: list[int]) -> None:
    scheduler = make(allocation=allocation, max_num_batched_tokens=8)
    scheduler.add(Request(0, 20, 2))
    assert [step(scheduler).num_used_blocks for _ in used] == used


def test_a_prompt_is_admitted_only_if_all_of_it_fits() -> None:
    scheduler = make(num_blocks=5, allocation="chunk", max_num_batched_tokens=8)
    scheduler.add(Request(0, 7, 3))
    scheduler.add(Request(1, 16, 2))
    assert step(scheduler).num_waiting == 1


def test_a_prompt_is_admitted_with_its_first_chunk_if_told_to() -> None:
    scheduler = make(num_blocks=5, allocation="chunk", admission="first_chunk", max_num_batched_tokens=8)
    scheduler.add(Request(0, 7, 3))
    scheduler.add(Request(1, 16, 2))
    plans = [step(scheduler, now) for now in range(2)]
    assert [chunks(plan) for plan in plans] == [[(0, 0, 7), (1, 0, 1)], [(1, 1, 7)]]
    assert plans[1].num_used_blocks == 4 and not plans[1].num_waiting


def test_first_chunk_needs_blocks_chunk_by_chunk() -> None:
    with pytest.raises(ValueError, match="admission='first_chunk': needs allocation"):
        make(admission="first_chunk")


def test_a_long_prompt_leaves_room_for_others_in_a_step() -> None:
    scheduler = make(max_num_batched_tokens=16, long_prefill_token_threshold=5)
    scheduler.add(Request(0, 12, 2))
    scheduler.add(Request(1, 3, 2))
    scheduler.add(Request(2, 5, 2))
    plans = [chunks(step(scheduler, now)) for now in range(3)]
    assert plans == [[(0, 0, 5), (1, 0, 3), (2, 0, 5)], [(0, 5, 5)], [(0, 10, 2)]]


@pytest.mark.parametrize("policy", ON_ANY_POOL)
def test_prompts_stay_whole_without_chunked_prefill(policy: str) -> None:
    scheduler = make(policy, max_num_batched_tokens=16, enable_chunked_prefill=False)
    scheduler.add(Request(0, 10, 3))
    scheduler.add(Request(1, 10, 3))
    with pytest.raises(RequestRefusedError, match="limit of 16 tokens"):
        scheduler.add(Request(2, 16, 3))
    prefills = [chunks(plan) for plan in run(scheduler) if plan.prefills]
    assert prefills == [[(0, 0, 10)], [(1, 0, 10)]]


def test_a_chunk_without_blocks_gives_way_to_decodes_and_stops_admissions() -> None:
    scheduler = make(num_blocks=6, allocation="chunk", max_num_batched_tokens=9)
    scheduler.add(Request(0, 8, 9))
    scheduler.add(Request(1, 16, 1))  # its four blocks fit beside the two that the first has now
    scheduler.add(Request(2, 1, 1))
    plans = [step(scheduler, now) for now in range(3)]
    assert [chunks(plan) for plan in plans] == [[(0, 0, 8), (1, 0, 1)], [(1, 1, 8)], []]
    assert [[s.request_id for s in plan.preempted] for plan in plans] == [[], [], [1]]
    assert plans[2].num_decodes == 1 and plans[2].num_waiting == 2


@pytest.mark.parametrize(("victim", "expected"), [("spare_last", 1), ("last", 2)])
def test_who_gave_way_last_is_spared_or_not(victim: Any, expected: int) -> None:
    choose = VICTIM_RULES[victim]
    running, pool = [bare_sequence(i, 1, 1) for i in range(3)], BlockManager(1, 1).pool
    assert choose(reversed(running), running[2], pool).request_id == expected
    assert choose(reversed(running), running[0], pool).request_id == 2
    urgent = [bare_sequence(0, 1, 1, priority=1), bare_sequence(1, 1, 1)]
    assert choose(reversed(urgent), None, pool) is urgent[victim == "last"]


def test_a_prompt_that_does_not_fit_is_admitted_when_a_decode_fills_the_block_it_lacks() -> None:
    scheduler = make(num_blocks=3)
    scheduler.add(Request(0, 4, 8, block_hashes=[1, 2, 3]))
    step(scheduler)
    step(scheduler)
    scheduler.add(Request(1, 9, 1, block_hashes=[1, 2]))  # two blocks are missing and one is free
    plan = scheduler.schedule(2)  # computes token 5 of the running sequence; token 7 fills its second block
    assert plan is not None and not plan.admitted and plan.horizon == 2
    plan = scheduler.extend(plan, plan.horizon)
    scheduler.commit(plan, 3)
    assert chunks(step(scheduler, 4)) == [(1, 8, 1)]


def test_what_a_sequence_will_generate_is_not_known_to_its_plan() -> None:
    """A real engine cannot know that token 7 will not fill the block that the waiting prompt lacks, and looks then."""
    scheduler = make(num_blocks=3)
    scheduler.add(Request(0, 4, 8, block_hashes=[1, 2, 3]))
    step(scheduler)
    step(scheduler)
    scheduler.add(Request(1, 9, 1, block_hashes=[1, 7]))
    plan = scheduler.schedule(2)
    assert plan is not None and not plan.admitted and plan.horizon == 2


@pytest.mark.parametrize(
    ("async_scheduling", "admitted", "sizes"),
    [(False, [[0, 1], [], [2], []], [2, 2, 2, 2]), (True, [[0, 1], [], [], [2]], [2, 2, 1, 2])],
)
def test_async_scheduling_keeps_seat_and_blocks_of_the_finished_for_one_more_plan(
    async_scheduling: bool, admitted: list[list[int]], sizes: list[int]
) -> None:
    scheduler = make(max_num_seqs=2, async_scheduling=async_scheduling)
    for i, max_tokens in enumerate([2, 9, 9]):
        scheduler.add(Request(i, 4, max_tokens))
    plans = list(itertools.islice(run(scheduler), 4))
    assert [ids(plan.admitted) for plan in plans] == admitted
    assert [plan.num_decodes + len(plan.prefills) for plan in plans] == sizes  # who has all tokens is not computed
    if async_scheduling:
        assert (plans[2].num_running, plans[2].num_used_blocks) == (1, 2)  # freed when the step begins


def test_async_scheduling_plans_again_when_everything_had_to_wait_for_the_last_step() -> None:
    scheduler = make(max_num_seqs=1, async_scheduling=True)
    for i in range(2):
        scheduler.add(Request(i, 4, 1))
    plan = scheduler.schedule(0)
    assert plan is not None and chunks(plan) == [(0, 0, 4)]
    assert scheduler.schedule(0) is None
    scheduler.commit(plan, 1)
    plan = scheduler.schedule(1)
    assert plan is not None and chunks(plan) == [(1, 0, 4)]
    assert scheduler.schedule(1) is None
    scheduler.commit(plan, 2)
    assert scheduler.schedule(2) is None and scheduler.blocks.num_used_blocks() == 0


def test_an_ended_sequence_is_no_preemption_when_its_blocks_are_needed() -> None:
    scheduler = make(num_blocks=4, victim="last", async_scheduling=True)
    scheduler.add(Request(0, 8, 6))
    scheduler.add(Request(1, 7, 2))
    *_, plan = itertools.islice(run(scheduler), 3)  # request 1 has ended, request 0 needs a third block
    assert (plan.num_decodes, plan.preempted, plan.num_used_blocks) == (1, [], 3)


@pytest.mark.parametrize(("async_scheduling", "num_decodes"), [(False, 4), (True, 5)])
def test_a_stop_that_was_not_foreseen_costs_one_slot_when_steps_are_planned_ahead(
    async_scheduling: bool, num_decodes: int
) -> None:
    """Its first token comes with the prompt and the others with a decode each; the slot after the fifth is too many."""
    scheduler = make(async_scheduling=async_scheduling)
    request = Request(0, 6, 40)
    scheduler.add(request)
    assert sum(plan.num_decodes for plan in run(scheduler, stops={0: 5})) == num_decodes
    assert request.num_output_tokens == 5 and scheduler.blocks.num_used_blocks() == 0


@pytest.mark.parametrize(
    ("max_padding", "budget", "expected"),
    [
        (None, 64, [[30, 30, 2], [20]]),  # the prompt of 20 tokens would exceed the budget
        (28, 90, [[30, 30, 2], [20]]),  # and here with its padding
        (28, 89, [[30, 30], [2, 20]]),  # padded to 90
        (27, 90, [[30, 30], [2, 20]]),
        (17, 90, [[30, 30], [2], [20]]),
        (0, 59, [[30], [30], [2], [20]]),  # two of 30 exceed the budget
    ],
)
def test_prompts_of_a_step_may_be_padded_by_so_much(
    max_padding: int | None, budget: int, expected: list[list[int]]
) -> None:
    scheduler = make(max_num_batched_tokens=budget, policy="prefill_first", max_padding=max_padding)
    for i, num_tokens in enumerate((30, 30, 2, 20)):
        scheduler.add(Request(i, num_tokens, 3))
    steps = [[size for _, _, size in chunks(step(scheduler, now))] for now in range(len(expected) + 1)]
    assert steps == [*expected, []]
