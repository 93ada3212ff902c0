"""Preempted sequences that keep their KV in a host tier: out, in line, back, and on from where they were."""

from __future__ import annotations

import pytest

from engine.core.kv.tiers.tier import DEVICE, HOST, Tier
from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.sequence import Request, SequenceStatus
from tests.engine.core.builders import chunks, generate, ids, make, run, step


def two_that_outgrow_the_pool(num_host_blocks: int) -> tuple[Scheduler, list[Request]]:
    """Two requests of two blocks each, of which every one comes to need four of the pool's five."""
    scheduler = make(num_blocks=5, num_host_blocks=num_host_blocks, preemption="swap")
    requests = [Request(i, 7, 9) for i in range(2)]
    for request in requests:
        scheduler.add(request)
    return scheduler, requests


def run_until(scheduler: Scheduler, now: int, *, swaps: bool) -> tuple[StepPlan, int]:
    """Step to the first plan that preempts (or not: that parks); returns it, not committed, and its time."""
    while plan := scheduler.schedule(now):
        if plan.preempted if swaps else plan.parked:
            return plan, now
        generate(plan)
        now += 1
        scheduler.commit(plan, now)
        scheduler.check_integrity()
    raise AssertionError("all requests have ended")


def test_a_swapped_sequence_goes_out_comes_back_parked_and_computes_nothing_again() -> None:
    scheduler, (first, second) = two_that_outgrow_the_pool(num_host_blocks=4)
    plan, now = run_until(scheduler, 0, swaps=True)
    victim = second.sequences[0]
    assert plan.preempted == [victim] and victim.status is SequenceStatus.WAITING
    assert victim.host_blocks is not None and not victim.block_table
    assert [(move.source_tier, move.target_tier) for move in plan.transfers] == [(DEVICE, HOST)] * 2
    assert [move.target for move in plan.transfers] == victim.host_blocks
    num_computed, on_host = victim.num_computed_tokens, victim.host_blocks.copy()
    scheduler.commit(plan, now + 1)

    plan, now = run_until(scheduler, now + 1, swaps=False)
    assert plan.parked == plan.admitted == [victim] and victim.status is SequenceStatus.PARKED
    assert [move.source for move in plan.transfers] == on_host
    assert [move.target for move in plan.transfers] == victim.block_table[: len(on_host)]
    assert victim not in plan.decodes and not plan.prefills
    scheduler.commit(plan, now + 1)
    assert scheduler.schedule(now + 1) is None, "it waits for its KV"
    scheduler.check_integrity()

    scheduler.ready(victim)
    scheduler.check_integrity()
    assert scheduler.blocks.host is not None and scheduler.blocks.host.num_free_blocks == 4
    plan = scheduler.schedule(now + 5)
    assert plan is not None and list(plan.decodes) == [victim] and victim.num_computed_tokens == num_computed
    assert victim.num_recomputed_tokens == 0 and second.num_preemptions == 1 and first.finish_time is not None


def test_what_comes_back_from_the_host_is_found_at_once() -> None:
    scheduler = make(num_blocks=6, num_host_blocks=4, preemption="swap")
    prompts = [[i] * 7 for i in range(2)]
    for i, prompt in enumerate(prompts):
        scheduler.add(Request(i, 7, 11, token_ids=prompt.copy()))
    plan, now = run_until(scheduler, 0, swaps=False)
    (parked,) = plan.parked
    scheduler.commit(plan, now + 1)
    scheduler.ready(parked)
    scheduler.add(Request(2, 7, 1, token_ids=prompts[parked.request_id]))
    plan = step(scheduler, now + 1)
    assert parked.num_tokens % 4 and chunks(plan) == [(2, 4, 3)], "a block of its prompt, before it fills the next one"


def test_without_room_on_the_host_the_kv_is_computed_again() -> None:
    scheduler, (_, second) = two_that_outgrow_the_pool(num_host_blocks=1)
    plan, now = run_until(scheduler, 0, swaps=True)
    assert ids(plan.preempted) == [1] and not plan.transfers and second.sequences[0].host_blocks is None
    scheduler.commit(plan, now + 1)
    restarts = [chunk for plan in run(scheduler) for chunk in chunks(plan) if chunk[0] == 1]
    assert restarts and second.num_recomputed_tokens > 0 and second.num_output_tokens == 9


def test_a_sequence_that_is_ready_while_a_plan_is_under_way_gets_no_token_of_it() -> None:
    scheduler = make(num_blocks=7, num_host_blocks=4, preemption="swap")
    for i, max_tokens in enumerate([20, 5, 9]):
        scheduler.add(Request(i, 7, max_tokens))
    plan, now = run_until(scheduler, 0, swaps=False)
    (parked,) = plan.parked
    scheduler.commit(plan, now + 1)
    under_way = scheduler.schedule(now + 1)
    assert under_way is not None and ids(list(under_way.decodes)) == [0]
    num_tokens = parked.num_tokens
    scheduler.ready(parked)
    scheduler.commit(under_way, now + 2)
    assert parked.num_tokens == num_tokens
    scheduler.check_integrity()
    after = scheduler.schedule(now + 2)
    assert after is not None and parked in after.decodes


@pytest.mark.parametrize("is_parked", [False, True])
def test_abort_frees_what_a_swapped_sequence_holds_when_nothing_is_copied_for_it(is_parked: bool) -> None:
    scheduler, _ = two_that_outgrow_the_pool(num_host_blocks=4)
    plan, now = run_until(scheduler, 0, swaps=True)
    (victim,) = plan.preempted
    scheduler.commit(plan, now + 1)
    if is_parked:
        plan, now = run_until(scheduler, now + 1, swaps=False)
        scheduler.commit(plan, now + 1)
    host = scheduler.blocks.host
    assert host is not None
    scheduler.abort(1)
    scheduler.check_integrity()
    if is_parked:
        assert host.num_free_blocks == 2 and scheduler.blocks.num_used_blocks() == len(victim.block_table) > 0
        scheduler.ready(victim)
        scheduler.check_integrity()
    assert host.num_free_blocks == 4 and not victim.block_table


def test_a_tier_hands_out_each_block_once() -> None:
    tier = Tier(HOST, 3)
    first, second = tier.take(1), tier.take(2)
    tier.check_integrity([*first, *second])
    assert tier.num_free_blocks == 0
    tier.release(first)
    tier.check_integrity(second)
    with pytest.raises(AssertionError, match="lost or held twice"):
        tier.check_integrity([*first, *second])
