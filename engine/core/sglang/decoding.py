"""The decodes of a step, and who gives way when blocks run out, as SGLang has it."""

from __future__ import annotations

from engine.core.kv.trees.radix import RadixManager
from engine.core.plan import StepDraft
from engine.core.planning.step_planner import StepPlanner
from engine.core.sequence import Sequence
from engine.core.sglang.batch import RunningBatch, num_output_tokens, renumber
from engine.core.sglang.budget import NewTokenRatio, max_new_tokens

_RETRACT_TOKENS = 20  # tokens for each that runs on, which retraction makes room for


def decode(
    planner: StepPlanner, draft: StepDraft, blocks: RadixManager, batch: RunningBatch, ratio: NewTokenRatio
) -> None:
    """A step of decodes alone."""
    left = [each for each in batch.sequences if each not in planner.running.ending]
    is_ending = len(left) < len(batch.sequences)
    batch.keep(left)
    if not left:
        return
    fits = _fits(planner, blocks)
    if not fits and is_ending:  # what ends gives back its blocks first
        return
    if fits:
        ratio.decay()
    elif not _retract(planner, draft, blocks, batch, ratio):
        return
    _plan(planner, draft, blocks, batch, ratio)


def mix(
    planner: StepPlanner, draft: StepDraft, blocks: RadixManager, batch: RunningBatch, ratio: NewTokenRatio
) -> None:
    """Let the decodes take part in a step with prompts, if blocks are left for them."""
    batch.keep([each for each in batch.sequences if each not in planner.running.ending])
    if batch.sequences and _fits(planner, blocks):
        _plan(planner, draft, blocks, batch, ratio)
        batch.join_step()


def _fits(planner: StepPlanner, blocks: RadixManager) -> bool:
    num_due = planner.running.decodes.num_blocks_due()
    blocks.evict_for(num_due * blocks.block_size)
    return num_due <= blocks.num_free_blocks


def _retract(
    planner: StepPlanner, draft: StepDraft, blocks: RadixManager, batch: RunningBatch, ratio: NewTokenRatio
) -> bool:
    """Let those give way who have generated the least, of equals those with the longest prompt; False if not even one
    can go on, which SGLang aborts."""
    outputs = {each: num_output_tokens(planner.running, each) for each in batch.sequences}

    def progress(sequence: Sequence) -> tuple[int, int]:
        return outputs[sequence], -sequence.request.num_prompt_tokens

    left, fits = sorted(batch.sequences, key=progress, reverse=True), False
    while not fits and len(left) > 1:
        planner.preempt(draft, left.pop())
        blocks.evict_for(len(left) * _RETRACT_TOKENS)
        fits = _fits(planner, blocks)
    batch.keep(left)
    renumber(left)
    num_output, num_new = sum(outputs[each] for each in left), sum(map(max_new_tokens, left))
    ratio.set((num_output + _RETRACT_TOKENS * len(left)) / (num_new + 1))
    return fits


def _plan(
    planner: StepPlanner, draft: StepDraft, blocks: RadixManager, batch: RunningBatch, ratio: NewTokenRatio
) -> None:
    if blocks.block_size > 1:  # SGLang makes room for a block of each
        blocks.keep_spare(len(batch.sequences))
    planner.plan_decodes(draft)
    ratio.note_planned()
