"""Displacement: those in the queue who outrank running sequences take their seats and blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.core.plan import StepDraft
from engine.core.sequence import Sequence
from engine.core.step_planner import StepPlanner


def make_way(planner: StepPlanner, draft: StepDraft, rank: Callable[[Sequence], Any]) -> None:
    """Preempt the last in `rank` until those in the queue who come before them have seats and blocks.

    It comes first in a step, so that those can be admitted in it, and it goes as far as the step has tokens for them.
    Nobody is preempted for a sequence that would not fit even if all who come after it gave way.
    """
    limits, running = planner.limits, planner.running
    victims = sorted(planner.candidates(), key=rank)
    budget = planner.max_num_batched_tokens - len(running.decodes.sequences) * running.decodes.tokens_per_decode
    budget -= sum(planner.chunk_tokens(s.num_tokens - s.num_computed_tokens, s.num_tokens) for s in running.prefilling)
    num_seats = num_blocks = 0  # of those for whom room is made
    for sequence in planner.waiting.first(limits.max_num_seqs):
        num_tokens, num_needed = planner.needs(sequence, budget)
        if budget <= 0 or (num_tokens > budget and not limits.cuts_prompts):
            break
        budget, num_blocks = budget - num_tokens, num_blocks + num_needed
        num_seats += 1 + sequence.num_forks
        after = [victim for victim in victims if rank(victim) > rank(sequence)]
        kept = sum(len(other.block_table) for other in planner.waiting.all_holders() if rank(other) > rank(sequence))
        if not after or _lacks_room(planner, num_seats, num_blocks - kept, after):
            break
        while after and _lacks_room(planner, num_seats, num_blocks):
            lacks_seats = num_seats + running.num_seats > limits.max_num_seqs
            # Blocks may come from those who wait, also from whoever gave way just now.
            if lacks_seats or not planner.reclaim(1, spared=sequence):
                if after.pop() in running.sequences:  # not preempted with another beam of its request
                    planner.preempt(draft, victims[-1])
                victims.pop()
    draft.is_starved = False  # who gave way did so for those that are admitted now


def _lacks_room(planner: StepPlanner, num_seats: int, num_blocks: int, without: list[Sequence] | None = None) -> bool:
    """Whether seats or blocks are too few, even if the sequences `without` which to plan give up all that they hold."""
    for sequence in without or ():
        num_seats -= 1 + sequence.num_forks
        num_blocks -= len(sequence.block_table)
    for sequence in planner.running.prefilling.keys() - (without or ()):  # they go on before anybody is admitted
        left = sequence.num_tokens - sequence.num_computed_tokens
        num_blocks += planner.missing_blocks(sequence, planner.chunk_tokens(left, left))
    num_blocks += planner.num_kept_blocks + planner.num_blocks_due()
    return num_seats + planner.running.num_seats > planner.limits.max_num_seqs or num_blocks > planner.num_free_blocks
