"""The prompts of a step: admissions, and chunks of those that were cut."""

from __future__ import annotations

from typing import NamedTuple

from engine.core.kv.trees.stored import StoredManager
from engine.core.plan import StepDraft
from engine.core.planning.step_planner import StepPlanner
from engine.core.sequence import Sequence
from engine.core.trtllm.capacity import Fitting
from engine.core.trtllm.chunking import Context, Share, whole_or_shared


class Part(NamedTuple):
    """Who could take part in a step.

    Attributes:
        prompts: in order.
        budget: tokens that the decodes leave for them.
        num_decodes: that take part.
    """

    prompts: dict[Sequence, Context]
    budget: int
    num_decodes: int


def take_part(planner: StepPlanner, fitting: Fitting) -> Part:
    """Who could take part in the step.

    Decodes that do not fit sit the step out. Where prompts are not cut, each is charged in its turn up to the first for
    which the tokens are not enough.
    """
    decodes, budget = planner.running.decodes.sequences, planner.max_num_batched_tokens
    prompts: dict[Sequence, Context] = {}
    served: set[Sequence] = set()
    for sequence in fitting.sequences:
        num_cached = fitting.num_cached.get(sequence, 0)
        if sequence in decodes:
            cost = 1 + planner.running.decodes.num_drafts_of(sequence)
        else:
            context = Context(sequence.num_tokens - sequence.num_computed_tokens, num_cached)
            cost = 0 if planner.limits.cuts_prompts else max(1, context.cost(context.num_left))
        if cost > budget:
            fitting.may_change = True
            break
        budget -= cost
        if sequence in decodes:
            served.add(sequence)
        else:
            prompts[sequence] = context
    for sequence in [each for each in decodes if each not in served]:
        planner.running.pause(sequence)
    if not planner.limits.cuts_prompts:
        budget += sum(max(1, each.cost(each.num_left)) for each in prompts.values())
    return Part(prompts, budget, len(served))


def chunk_sizes(planner: StepPlanner, blocks: StoredManager, part: Part, share: Share) -> dict[Sequence, int]:
    """Tokens of each prompt that the step could compute, those of its stored blocks included; 0: it waits.

    Args:
        share: shares out tokens that are not enough for all.
    """
    sizes = [each.num_left for each in part.prompts.values()]
    if planner.limits.cuts_prompts:
        longest = planner.max_num_batched_tokens
        sizes = whole_or_shared([*part.prompts.values()], part.budget, longest, blocks.block_size, share)
    return dict(zip(part.prompts, sizes, strict=True))


def plan_prompts(
    planner: StepPlanner, draft: StepDraft, blocks: StoredManager, sizes: dict[Sequence, int], budget: int
) -> bool:
    """Plan chunks of these `sizes` within `budget` tokens, those first that stay cut; False if somebody got none."""

    def is_last(each: tuple[Sequence, int]) -> bool:
        sequence, size = each
        return size == sequence.num_tokens - sequence.num_computed_tokens

    num_due = planner.num_blocks_due()
    is_complete = True
    for sequence, size in sorted(sizes.items(), key=is_last):
        num_tokens = _chunk(planner, draft, blocks, sequence, min(size, budget), budget, num_due) if size else 0
        budget -= num_tokens
        is_complete &= num_tokens > 0
    return is_complete


def _chunk(
    planner: StepPlanner, draft: StepDraft, blocks: StoredManager, sequence: Sequence, size: int, budget: int, due: int
) -> int:
    """Plan a chunk, and admit its sequence if it is the first; returns its tokens, 0 if there is no room any more."""
    length = sequence.num_tokens
    if sequence in planner.running.sequences:
        planner.plan_chunk(draft, sequence, size)
        return size
    match = blocks.match(sequence)
    start = match.num_cached_tokens
    num_tokens = length - start
    if start + size < length or num_tokens > budget:
        end = (start + min(size, budget)) // blocks.block_size * blocks.block_size
        num_tokens = end - start if planner.limits.cuts_prompts else 0
    if num_tokens <= 0 or blocks.blocks_needed(sequence, match, length) + due > blocks.num_free_blocks:
        return 0
    if planner.waiting.head is sequence:
        planner.waiting.pop()
    else:
        planner.waiting.remove(sequence)
    draft.transfers += blocks.admit(sequence, match, length)
    planner.running.start(sequence, match, draft.now)
    sequence.admission = sequence.request.order  # those that end in one step give back their blocks in this order
    draft.admitted.append(sequence)
    planner.plan_chunk(draft, sequence, num_tokens)
    return num_tokens
