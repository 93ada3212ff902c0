"""What the slots of the KV memory are used for, after Kwon et al. 2023 (PagedAttention), section 3."""

from __future__ import annotations

from collections import abc
from typing import NamedTuple

from engine.core.admission.waiting_queue import WaitingQueue
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.reserved.contiguous import ContiguousManager
from engine.core.plan import StepDraft
from engine.core.running.running_set import RunningSet
from engine.core.sequence import Sequence


class SlotCounts(NamedTuple):
    """Slots, each counted once however many sequences share it, when a step has run. The rest of the slots of used
    blocks is internal waste.

    Attributes:
        num_tokens: hold a token's KV; what padding holds is internal waste, and so is a last token.
        num_reserved: are kept for tokens to come. A contiguous reservation keeps slots up to the end of its sequence as
            far as that is known; beyond it they are internal waste. Under paging these are slots of known tokens that
            are not computed yet; the unfilled slots behind them are internal waste, though decodes may fill them.
        num_external: free, but of no use: no hole is large enough for the head of the queue. 0 under paging.
    """

    num_tokens: int
    num_reserved: int
    num_external: int


def count_slots(
    lanes: list[RunningSet], planned: RunningSet, draft: StepDraft, blocks: BlockManager, waiting: WaitingQueue
) -> SlotCounts:
    """What the slots are used for when the step of `draft`, which is for the lane `planned`, has run, and those that
    other lanes have under way."""
    plans = [lane.flights[-1].plan for lane in lanes if lane.flights and not lane.flights[-1].is_advanced]
    prefills = [*draft.prefills, *(chunk for plan in plans for chunk in plan.prefills)]
    chunks = {chunk.sequence: chunk.num_tokens for chunk in prefills}
    late = planned.decodes.late if draft.num_decodes else ()
    num_tokens = draft.num_decodes - len(late) + sum(len(plan.decodes) for plan in plans)
    num_reserved, beside = 0, list(waiting.holders)
    useless: list[Sequence] = []
    for lane in lanes:
        num_tokens += lane.decodes.work((), 0).num_context_tokens - len(lane.decodes.sequences)
        beside += [*lane.prefilling, *lane.paused, *lane.parked, *lane.held]
        useless += [*lane.ending, *lane.padding]
        if lane.padding:
            num_tokens -= _num_padding_tokens(lane, draft.num_decodes if lane is planned else 0)
    for sequence in beside:
        if sequence in useless:  # padding that sits a step out
            continue
        num_written = sequence.num_computed_tokens + chunks.get(sequence, 0)
        num_written = max(num_written, sequence.num_registered_blocks * blocks.block_size)
        num_tokens += num_written
        if not sequence.is_prefilled:
            num_held = len(sequence.block_table) * blocks.block_size
            num_reserved += min(sequence.num_tokens, num_held) - num_written
    num_tokens -= _num_shared_slots(lanes, useless, blocks)
    if isinstance(blocks, ContiguousManager):
        num_external = blocks.num_unusable_slots(waiting.head) if waiting else 0
        return SlotCounts(num_tokens, blocks.num_promised_tokens(useless) - num_tokens, num_external)
    return SlotCounts(num_tokens, num_reserved, 0)


def num_to_compute(sequence: Sequence, end: int, block_size: int) -> int:
    """Slots that a prompt, cut after `end` tokens, holds for its known tokens after these."""
    num_held = len(sequence.block_table) * block_size
    return min(sequence.num_tokens, num_held) - end


def _num_padding_tokens(lane: RunningSet, num_decodes: int) -> int:
    """Slots that the padding among the decodes of a lane has written to when its step, of so many decodes, has run."""
    rows = [row for row in lane.padding if row in lane.decodes.sequences]
    if lane.flights and not lane.flights[-1].is_advanced:
        num_decodes = lane.flights[-1].plan.num_decodes
    return sum(row.num_computed_tokens for row in rows) + (len(rows) if num_decodes else 0)


def _num_shared_slots(lanes: list[RunningSet], useless: abc.Sequence[Sequence], blocks: BlockManager) -> int:
    """How often slots that hold a token are counted more than once when all sequences but `useless` are summed."""
    _, num_saved_blocks, _ = blocks.count_blocks(useless)
    if not num_saved_blocks:
        return 0
    num_unfilled, seen = 0, set()
    for sequence in (sequence for running in lanes for sequence in (*running.forked, *running.held)):
        last, num_filled = divmod(sequence.num_computed_tokens, blocks.block_size)
        if not num_filled or last >= len(sequence.block_table) or sequence in useless:
            continue
        if sequence.block_table[last] in seen:  # forks share a block that is not full until they write to it
            num_unfilled += blocks.block_size - num_filled
        seen.add(sequence.block_table[last])
    return num_saved_blocks * blocks.block_size - num_unfilled
