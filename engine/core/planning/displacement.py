"""Displacement: those in the queue who outrank running sequences take their seats and blocks."""

from __future__ import annotations

from collections import abc
from typing import Any

from engine.core.admission.need import Need
from engine.core.plan import StepDraft
from engine.core.planning.asking import AdmissionState, Wait
from engine.core.planning.step_planner import StepPlanner
from engine.core.sequence import Sequence


def make_way(planner: StepPlanner, draft: StepDraft, rank: abc.Callable[[Sequence], Any]) -> None:
    """Preempt the last in `rank` until those in the queue who come before them have seats and blocks.

    This is done first in a step, for as many as the step has tokens for, so that it can admit them.
    Nobody is preempted for a sequence that would not fit even if all who come after it gave way.
    """
    limits, running = planner.limits, planner.running
    victims = sorted(planner.candidates(), key=rank)
    budget = planner.max_num_batched_tokens - running.decodes.num_step_tokens
    sizes = [planner.chunk_tokens(s.num_tokens - s.num_computed_tokens, s.num_tokens) for s in running.prefilling]
    budget -= sum(sizes)
    num_seats = num_blocks = 0  # that those for whom room is made take
    for sequence in planner.waiting.first(limits.max_num_seqs):
        if budget <= 0:
            break
        need = _need_beside(planner, sequence, budget, num_seats, num_blocks)
        after = [victim for victim in victims if rank(victim) > rank(sequence)]
        kept = sum(len(other.block_table) for other in planner.waiting.holders if rank(other) > rank(sequence))
        if not after or _must_wait(planner, need, _state_without(planner, draft.now, budget, after, kept)):
            break
        if num_tokens := min(need.tokens, budget):
            if sizes and limits.pads_too_much(sizes, num_tokens):
                break  # it would not enter beside the prompts that go on
            sizes.append(num_tokens)
        while after and _must_wait(planner, need, state := _state_without(planner, draft.now, budget)):
            # Blocks may come from those who wait, also from whoever gave way just now.
            if need.seats > state.free_seats or not planner.reclaim(1, spared=sequence):
                after.pop()
                planner.preempt(draft, victims.pop())
            # What others let go may be cached blocks that it counted on.
            need = _need_beside(planner, sequence, budget, num_seats, num_blocks)
        num_seats, num_blocks = need.seats, num_blocks + _blocks_taken(planner, need)
        budget -= need.tokens
    draft.is_starved = False  # sequences gave way for those that are admitted now


def _need_beside(planner: StepPlanner, sequence: Sequence, budget: int, num_seats: int, num_blocks: int) -> Need:
    """What it needs, and so many seats and blocks for those that come before it."""
    need = Need(sequence, budget, planner.admission.look)
    need.seats += num_seats
    if num_blocks:
        need.add(num_blocks)
    return need


def _blocks_taken(planner: StepPlanner, need: Need) -> int:
    """Free blocks that its admission takes, which are fewer than it is checked for where it gets those of a chunk."""
    sequence, num_tokens = need.sequence, min(need.tokens, need.budget)
    num_held = sequence.num_tokens
    if num_tokens and planner.limits.allocates_chunks:
        num_held = need.match.num_cached_tokens + num_tokens
    return planner.blocks.blocks_needed(sequence, need.match, num_held)


def _must_wait(planner: StepPlanner, need: Need, state: AdmissionState) -> bool:
    return isinstance(planner.admission.admit(need, state), Wait)


def _state_without(
    planner: StepPlanner, now: int, budget: int, leaving: abc.Sequence[Sequence] = (), num_kept: int = 0
) -> AdmissionState:
    """What is left when `leaving` have given up all that they hold, waiting sequences `num_kept` blocks, and when those
    that run on have the blocks of the step."""
    state = planner.admission.state(now, budget, planner.limits.cuts_prompts, planner.admission.free_seats)
    free_seats, free_blocks = state.free_seats, state.free_blocks + num_kept - planner.num_blocks_due()
    for sequence in leaving:
        free_seats += 1 + sequence.num_forks
        free_blocks += len(sequence.block_table)
    for sequence in planner.running.prefilling.keys() - leaving:  # they go on before anybody is admitted
        left = sequence.num_tokens - sequence.num_computed_tokens
        free_blocks -= planner.missing_blocks(sequence, planner.chunk_tokens(left, left))
    running = [sequence for sequence in state.running if sequence not in leaving] if leaving else state.running
    return state.with_free(free_seats, free_blocks, running)
