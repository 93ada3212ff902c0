"""Who of the running sequences is served when blocks run out."""

from __future__ import annotations

from engine.core.plan import StepDraft
from engine.core.planning.step_planner import StepPlanner
from engine.core.running.registering import register_known
from engine.core.sequence import Sequence


def ration(planner: StepPlanner, draft: StepDraft, *, ends: bool) -> tuple[dict[Sequence, int], int]:
    """Hand out blocks and tokens one sequence after the other, and preempt for each that lacks blocks.

    Who is served takes its blocks before the next victim frees its own. A victim may have been served already: it gives
    back its share. If a sequence must give way itself, all after it sit this step out if it `ends` with that; where a
    victim is spared, so do who lacks blocks and all after it. So does a decode that with its drafts has more tokens
    than the prompts before it leave; vLLM would cut the drafts. Returns the tokens of each cut prompt and what is left
    of the budget.
    """
    running, budget = planner.running, planner.max_num_batched_tokens
    due = running.decodes.blocks_due()
    served: dict[Sequence, tuple[int, list[int]]] = {}  # tokens, and the blocks that are set aside
    is_over = False
    for sequence in list(running.sequences):
        decodes = sequence in running.decodes.sequences
        if sequence not in running.sequences or not decodes and sequence not in running.prefilling:
            continue
        num_tokens = 1 + running.decodes.num_drafts_of(sequence) if decodes else 1
        if is_over or num_tokens > budget:
            if decodes:
                running.pause(sequence)
            continue
        if decodes:
            num_blocks = due.get(sequence, 0) + planner.must_copy(sequence)
        else:
            num_tokens = planner.chunk_tokens(sequence.num_tokens - sequence.num_computed_tokens, budget)
            num_blocks = planner.missing_blocks(sequence, num_tokens)
        gave_way = False
        while num_blocks > planner.num_free_blocks and not gave_way:
            if planner.reclaim(num_blocks - planner.num_free_blocks):
                continue
            victim = planner.choose_victim()
            if is_over := planner.spares(victim):
                break
            if victim in served:
                register_known(running, planner.blocks, victim)
                given_back, blocks = served.pop(victim)
                budget += given_back
                planner.take_back(victim, blocks)
            planner.preempt(draft, victim)
            gave_way = victim is sequence
        if is_over:
            if decodes:
                running.pause(sequence)
            continue
        is_over = ends and gave_way
        if not gave_way:
            served[sequence] = num_tokens, planner.set_aside(num_blocks)
            budget -= num_tokens
    planner.put_back([block for _, blocks in served.values() for block in blocks])
    return {s: tokens for s, (tokens, _) in served.items() if s in running.prefilling}, budget
