"""Padding: rows that a batch of fixed shape goes on computing in place of its finished sequences.

    sequence   decoding ──last token──▶ ending ──commit──▶ released
                                                 │ seat and blocks
    its row                                      └──▶ padding ──end of the batch──▶ released

A row of padding decodes like any sequence: in every step it computes a token, which is dropped, and it takes a block
whenever it has filled one. It belongs to a request of its own, so that the finished one keeps its counts. Rows give
way before any waiting or running sequence does, and at the end of `max_model_len` or of their reservation. Where steps
are planned ahead, a row sits out the step that was planned before its sequence was known to have ended.
"""

from __future__ import annotations

from engine.core.block_hashes import BlockHashes
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.reserved.contiguous import ContiguousManager
from engine.core.running.running_set import RunningSet
from engine.core.sequence import Request, Sequence, SequenceStatus


def pad_or_release(running: RunningSet, blocks: BlockManager, sequence: Sequence, longest: int) -> None:
    """Let a row of padding, of at most `longest` tokens, take the seat and the blocks of a sequence that has ended; or
    release these if the row could not compute a token."""
    end = min(longest, blocks.most_tokens(sequence)) if isinstance(blocks, ContiguousManager) else longest
    if sequence.num_tokens >= end:
        running.release(sequence)
        return
    request = Request(sequence.request_id, sequence.request.num_prompt_tokens, end)
    (row,) = request.sequences
    row.end_length = end
    row.add_tokens(sequence.num_output_tokens)
    row.set_computed(row.num_tokens - 1)
    _hand_over(blocks, sequence, row)
    running.release(sequence)
    running.seat(row)
    running.padding[row] = None
    row.status = SequenceStatus.PADDING
    if blocks.must_copy(row):
        running.forked[row] = None
    if running.flights and not running.flights[-1].is_advanced:
        running.paused[row] = row.num_computed_tokens  # it gets no token of the plan that is under way
    else:
        running.decodes.join(row)


def _hand_over(blocks: BlockManager, sequence: Sequence, row: Sequence) -> None:
    """Let `row` hold the blocks of `sequence` that its tokens are in; what it adds cannot be found."""
    row.block_table, sequence.block_table = sequence.block_table, []
    blocks.note_row(sequence, row)
    if isinstance(blocks, ContiguousManager):
        return
    row.num_registered_blocks, sequence.num_registered_blocks = sequence.num_registered_blocks, 0
    if sequence.hashes is not None and row.num_registered_blocks:
        row.hashes = BlockHashes(sequence.hashes.part(0, row.num_registered_blocks))
    num_needed = blocks.blocks_for(row.num_computed_tokens)
    if len(row.block_table) > num_needed:  # the sequence stopped before it had filled them
        blocks.release_tail(row, num_needed)


def end_batch(running: RunningSet) -> None:
    """Release all padding if nobody else is left."""
    if len(running.padding) + len(running.ending) == len(running.sequences):
        for row in [*running.padding]:
            drop(running, row)


def drop(running: RunningSet, row: Sequence) -> None:
    """Release a row of padding."""
    del running.padding[row]
    running.leave(row, SequenceStatus.FINISHED)
    running.release(row)
    row.request.forget_sequences()


def drop_last(running: RunningSet) -> None:
    """Release the row of padding that was made last."""
    drop(running, next(reversed(running.padding)))
