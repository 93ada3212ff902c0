"""Requests of several sequences: one prompt, shared blocks, and a copy of the last one for each that writes into it."""

from __future__ import annotations

import pytest

from engine.core.kv.tiers.tier import DEVICE
from engine.core.scheduler import Scheduler
from engine.core.sequence import Request, RequestRefusedError, SequenceStatus
from tests.engine.core.builders import chunks, ids, make, run, step
from tests.policies import ON_ANY_POOL

ALL = pytest.mark.parametrize("policy", ON_ANY_POOL)


def forked(num_prompt_tokens: int, max_tokens: int = 6) -> tuple[Scheduler, Request]:
    """A request of three sequences whose prompt is computed; blocks have four tokens."""
    scheduler = make()
    request = Request(0, num_prompt_tokens, max_tokens, num_sequences=3)
    scheduler.add(request)
    assert chunks(step(scheduler)) == [(0, 0, num_prompt_tokens)]
    return scheduler, request


@ALL
def test_three_sequences_compute_their_prompt_once_and_end_together(policy: str) -> None:
    scheduler = make(policy)
    request = Request(0, 10, 6, num_sequences=3)
    scheduler.add(request)
    plans = list(run(scheduler))
    assert [(chunks(plan), plan.num_decodes) for plan in plans] == [([(0, 0, 10)], 0)] + [([], 3)] * 5
    assert [sequence.num_output_tokens for sequence in request.sequences] == [6, 6, 6]
    assert request.finish_time == 6 and scheduler.blocks.num_used_blocks() == 0


def test_forks_share_full_blocks_and_copy_the_last_partial_one() -> None:
    scheduler, request = forked(10)
    assert scheduler.blocks.num_used_blocks() == 3, "nothing is written yet, so nothing is copied"
    shared = request.sequences[0].block_table.copy()
    plan = step(scheduler, 1)
    tables = [sequence.block_table for sequence in request.sequences]
    assert all(table[:2] == shared[:2] for table in tables)
    assert len({table[2] for table in tables}) == 3, "each writes to a block of its own"
    assert [(copy.source_tier, copy.source, copy.target_tier) for copy in plan.transfers] == [
        (DEVICE, shared[2], DEVICE)
    ] * 2
    assert {copy.target for copy in plan.transfers} == {table[2] for table in tables} - {shared[2]}
    assert plan.num_used_blocks == 2 + 3 and plan.work.num_copied_blocks == 2


def test_forks_of_whole_blocks_copy_nothing() -> None:
    scheduler, request = forked(8)
    plan = step(scheduler, 1)
    assert not plan.transfers and plan.num_used_blocks == 2 + 3
    assert len({tuple(sequence.block_table[:2]) for sequence in request.sequences}) == 1


def test_blocks_live_until_their_last_holder_ends() -> None:
    scheduler, request = forked(9, max_tokens=9)
    step(scheduler, 1)
    parent, *children = request.sequences
    shared = parent.block_table[:2]
    for now, stopped, num_used in [(2, parent, 2 + 2), (3, children[0], 2 + 1), (4, children[1], 0)]:
        plan = scheduler.schedule(now)
        assert plan is not None
        outcome = scheduler.commit(plan, now + 1, {stopped: 0})
        scheduler.check_integrity()
        assert scheduler.blocks.num_used_blocks() == num_used and bool(outcome.finished) == (num_used == 0)
        assert all(s.block_table[:2] == shared for s in children if s.status is SequenceStatus.DECODING)
    assert request.finish_time == 5


def test_a_preempted_fork_finds_the_blocks_of_its_prompt() -> None:
    scheduler = make(num_blocks=11)
    request = Request(0, 16, 20, num_sequences=3)
    scheduler.add(request)
    restarts = [chunk for plan in run(scheduler) for chunk in plan.prefills if chunk.sequence.num_preemptions]
    assert restarts and all(chunk.start >= 16 for chunk in restarts)
    assert [sequence.num_output_tokens for sequence in request.sequences] == [20, 20, 20]


def test_seats_are_kept_for_sequences_that_will_be_forked() -> None:
    scheduler = make(max_num_seqs=4, max_num_batched_tokens=16)
    scheduler.add(Request(0, 12, 5, num_sequences=3))
    scheduler.add(Request(1, 2, 5, num_sequences=2))
    assert chunks(step(scheduler)) == [(0, 0, 12)], "one seat is left, and the next needs two"
    with pytest.raises(RequestRefusedError, match="5 sequences: must be from 1 to 4"):
        scheduler.add(Request(2, 2, 5, num_sequences=5))


def test_abort_takes_out_all_sequences() -> None:
    scheduler, request = forked(10)
    step(scheduler, 1)
    scheduler.abort(0)
    scheduler.check_integrity()
    assert {sequence.status for sequence in request.sequences} == {SequenceStatus.ABORTED}
    assert scheduler.blocks.num_used_blocks() == 0 and scheduler.schedule(2) is None


def test_forks_that_sit_a_step_out_copy_nothing_for_it() -> None:
    """A long prompt leaves the budget of one decode, and the pool the block that its copy takes."""
    scheduler = make(
        "admission_order", num_blocks=13, max_num_seqs=4, max_num_batched_tokens=6, long_prefill_token_threshold=5
    )
    scheduler.add(Request(0, 40, 2))
    scheduler.add(Request(1, 6, 5, num_sequences=3))
    while not (plan := step(scheduler)).paused:
        pass
    assert plan.num_decodes == 1 and ids(plan.paused) == [1, 1]
    assert len([each for each in plan.transfers if each.is_within_device]) == 1
    assert all(run(scheduler)) and not scheduler.unfinished
