"""Decodes with drafts whose steps are planned ahead, worked out by hand: three drafts each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.core.decodes.interface import Decodes
from engine.core.decodes.ragged import RaggedDecodes
from engine.core.offloading.rules import OffloadingRules
from engine.core.scheduler import Scheduler
from engine.core.scheduler_options import OffloadOptions
from engine.core.sequence import Request, Sequence
from tests.engine.core.builders import bare_sequence, chunks, ids, make, run


def drafting(first_gain: int = 1, **given: Any) -> Scheduler:
    """A scheduler of vLLM's rules; a decode gains so many tokens with its first step, and one with each after it."""

    def trajectory(sequence: Sequence) -> NDArray[np.int64]:
        return np.append(0, first_gain + np.arange(sequence.end_length))

    def make_decodes(block_size: int, longest: int) -> Decodes:
        return RaggedDecodes(block_size, longest, 3, trajectory, plans_ahead=True)

    vllm: dict[str, Any] = {"allocation": "chunk", "victim": "last", "async_scheduling": True, "eviction": "lru"}
    return make("admission_order", make_decodes=make_decodes, **vllm | given)


@pytest.mark.parametrize("groups", [False, True])
def test_a_prompt_enters_when_a_decode_fills_a_block_for_it_without_taking_one(groups: bool) -> None:
    # The decode knows 6, 7, 8 tokens before steps 1 to 3; with drafts under way they may be 6, 10, 11. So it has room
    # for 9 to 14 from step 1 on: two blocks. The eighth token is known when step 4 is planned. One of three blocks is
    # left, and the prompt, of two, has to find the first.
    scheduler = drafting(num_blocks=3, block_size=8)
    scheduler.add(Request(0, 5, 9, block_hashes=[11]))
    admitted: dict[int, int] = {}
    now = 0
    for plan in run(scheduler, groups=groups):
        admitted |= dict.fromkeys(ids(plan.admitted), now)
        if not now:
            scheduler.add(Request(1, 9, 1, block_hashes=[11]))
        now += plan.num_steps
    assert admitted == {0: 0, 1: 4}


def test_a_prompt_enters_beside_a_decode_that_is_ending() -> None:
    # Step 1 brings two tokens, 9 are known before step 2, which brings the last: the second block is known when step 3
    # is planned. The decode takes no part in that, but holds its four blocks of five until step 2 has run.
    scheduler = drafting(2, num_blocks=5)
    scheduler.add(Request(0, 6, 4, block_hashes=[11, 12]))
    prompt, first = scheduler.schedule(0), scheduler.schedule(0)
    assert prompt is not None and first is not None
    scheduler.add(Request(1, 12, 1, block_hashes=[11, 12]))
    scheduler.commit(prompt, 1)
    last = scheduler.schedule(1)
    scheduler.commit(first, 2)
    ahead = scheduler.schedule(2)
    assert last is not None and last.num_decodes == 1 and not last.admitted
    assert ahead is not None and chunks(ahead) == [(1, 8, 4)] and scheduler.num_running == 2


def test_drafts_under_way_of_a_victim_that_rests_cannot_be_found() -> None:
    # After the drafts of step 1 request 1 may have 12 tokens, as many as there can be: it sits out step 2, in which
    # request 0 takes its blocks. Only then comes the ninth token, with which the first block would be known.
    scheduler = drafting(num_blocks=3, block_size=8, max_model_len=12)
    scheduler.add(Request(0, 2, 3))
    scheduler.add(Request(1, 7, 4, block_hashes=[11]))
    plans = [(chunks(plan), ids(plan.preempted)) for plan in run(scheduler)]
    assert plans[:3] == [([(0, 0, 2), (1, 0, 7)], []), ([], []), ([], [1])]
    assert [chunk for chunk, _ in plans[3:] if chunk] == [[(1, 0, 9)]]


@pytest.mark.parametrize("first_gain", [2, 3])
def test_of_an_aborted_sequence_at_the_longest_length_only_what_is_known_is_stored(first_gain: int) -> None:
    # Step 1 begins with 7 known tokens: three blocks. With two more it rests in the next step, with three it ends.
    offload = OffloadOptions(rules=OffloadingRules())
    scheduler = drafting(first_gain, block_size=2, max_model_len=10, num_host_blocks=30, offload=offload)
    scheduler.add(Request(0, 6, 4, block_hashes=[11, 12, 13, 14, 15]))
    prompt, first = scheduler.schedule(0), scheduler.schedule(0)
    assert prompt is not None and first is not None and first.num_decodes == 1
    scheduler.commit(prompt, 1)
    scheduler.abort(0)
    assert scheduler.schedule(1) is None and scheduler.storing is not None
    assert sum(len(job.places) for job in scheduler.storing.take_orders().jobs) == 3


def test_a_decode_whose_drafts_are_more_than_a_prompt_leaves_sits_the_step_out() -> None:
    # A step has 8 tokens, of which the prompt takes 5 until it has 25.
    scheduler = drafting(max_num_seqs=2, max_num_batched_tokens=8, long_prefill_token_threshold=5)
    scheduler.add(Request(0, 25, 2))
    scheduler.add(Request(1, 3, 2))
    plans = [(chunks(plan), plan.num_decodes) for plan in run(scheduler)]
    assert plans[:2] == [([(0, 0, 5), (1, 0, 3)], 0), ([(0, 5, 5)], 0)]
    assert plans[4:] == [([(0, 20, 5)], 0), ([], 2)]


def test_a_decode_whose_step_has_come_leaves_beside_a_padded_one_that_rests() -> None:
    """What the first waited for has come with this step. The other joins now and rests, so that it waits for nothing
    but this step either: who leaves must not be looked for among those that wait for it."""
    decodes = RaggedDecodes(4, 12, 3, lambda sequence: np.arange(sequence.end_length + 1), plans_ahead=True)
    first, resting = bare_sequence(0, 8, 2), bare_sequence(1, 9, 2)
    for sequence in (first, resting):
        sequence.set_computed(sequence.num_tokens)
    decodes.join(first)
    decodes.advance(1)
    decodes.join(resting, is_padded=True)
    assert resting in decodes.resting
    for sequence in (first, resting):
        decodes.remove(sequence)
    decodes.check_integrity()
