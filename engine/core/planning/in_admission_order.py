"""Steps in which decodes and cut prompts are served in the order of their admission, whichever they are."""

from __future__ import annotations

from collections import abc

from engine.core.plan import StepDraft
from engine.core.planning.rationing import ration
from engine.core.planning.step_planner import NO_CHUNKS, StepPlanner
from engine.core.sequence import Sequence


def plan_running(planner: StepPlanner, draft: StepDraft, *, ends: bool) -> int:
    """Plan the running sequences; returns the tokens that are left of the budget.

    Args:
        ends: as of `ration`.
    """
    chunks, budget = NO_CHUNKS, planner.max_num_batched_tokens - planner.running.decodes.num_step_tokens
    num_blocks = planner.num_blocks_due()
    if planner.running.prefilling:
        chunks, budget = _chunks(planner, budget)
        num_blocks += sum([planner.missing_blocks(s, n) for s, n in chunks.items()])
    if num_blocks > planner.num_free_blocks or budget <= 0 and _decodes_come_later(planner):
        chunks, budget = ration(planner, draft, ends=ends)
    for sequence, num_tokens in chunks.items():
        planner.extend(sequence, num_tokens)
    planner.plan_decodes(draft, chunks)
    for sequence, num_tokens in chunks.items():
        planner.plan_chunk(draft, sequence, num_tokens)
    return budget


def _decodes_come_later(planner: StepPlanner) -> bool:
    """Whether a decode was admitted after a cut prompt, which may take the tokens that it needs."""
    running = planner.running
    first = next(iter(running.prefilling), None)
    last = next((s for s in reversed(running.sequences) if s in running.decodes.sequences), None)
    return first is not None and last is not None and first.admission < last.admission


def _chunks(planner: StepPlanner, budget: int) -> tuple[abc.Mapping[Sequence, int], int]:
    """Tokens of each cut prompt if blocks do not run out, and what is left of the budget."""
    chunks = {}
    for sequence in planner.running.prefilling:
        if budget <= 0:
            break
        chunks[sequence] = planner.chunk_tokens(sequence.num_tokens - sequence.num_computed_tokens, budget)
        budget -= chunks[sequence]
    return chunks, budget
