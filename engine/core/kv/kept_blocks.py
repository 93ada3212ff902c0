"""Blocks that a preempted sequence keeps while it waits: a prefix of full blocks, which it gives up from the tail.

What it does not keep it can find in the prefix cache, by a name of its own if nobody knows the content.
"""

from __future__ import annotations

from collections import abc

from engine.core.kv.block_manager import BlockManager
from engine.core.sequence import Sequence


def name_content(blocks: BlockManager, sequence: Sequence, num_tokens: int) -> None:
    """Give the unknown content of the first `num_tokens` tokens, which are computed, a name of its own.

    So a sequence that gives up its blocks can find them again.
    """
    if sequence.token_ids is not None or not blocks.enable_prefix_caching:
        return
    hashes = sequence.block_hashes = list(sequence.block_hashes or ())
    request = sequence.request
    name = request.order << 16 | request.sequences.index(sequence)
    own = -1 - (name << 32)  # below 0, where no given identity is
    hashes.extend(range(own - len(hashes), own - num_tokens // blocks.block_size, -1))
    blocks.register(sequence, num_tokens)


def keep_prefix(blocks: BlockManager, sequence: Sequence, num_tokens: int) -> None:
    """Release all but the full blocks among the first `num_tokens` tokens, whose content is known and computed.

    The prefix cache must know what is kept, so that a match goes on there when `sequence` is admitted again. The block
    with its last token is not kept, of a beam that was computed to its end and waits for the others: a readmitted
    sequence computes at least that token.
    """
    blocks.release_tail(sequence, min(num_tokens, sequence.num_tokens - 1) // blocks.block_size)
    sequence.set_computed(len(sequence.block_table) * blocks.block_size)


def give_up(blocks: BlockManager, sequence: Sequence, num_blocks: int) -> None:
    """Release the last of the kept blocks until `num_blocks` more are free, or all are gone.

    A block that others hold too does not become free. Beams, for all of which the first one waits, give up what is not
    common to all first, the last beam before the others; then the first one alone holds what was common.
    """
    common = sequence.request.num_common_blocks
    if common is not None:
        for beam in reversed(sequence.request.sequences):
            num_blocks = _release_last(blocks, beam, num_blocks, common)
        if num_blocks <= 0:
            return
        for beam in sequence.request.sequences[1:]:
            _release_to(blocks, beam, 0)
    _release_last(blocks, sequence, num_blocks, 0)


def _release_last(blocks: BlockManager, sequence: Sequence, num_blocks: int, num_spared: int) -> int:
    """Release blocks behind the first `num_spared` until `num_blocks` more are free; returns how many are missing."""
    table = sequence.block_table
    num_kept = len(table)
    while num_kept > num_spared and num_blocks > 0:
        num_kept -= 1
        num_blocks -= not blocks.pool.is_shared(table[num_kept])
    _release_to(blocks, sequence, num_kept)
    return num_blocks


def _release_to(blocks: BlockManager, sequence: Sequence, num_kept: int) -> None:
    if num_kept < len(sequence.block_table):
        blocks.release_tail(sequence, num_kept)
        sequence.set_computed(num_kept * blocks.block_size)


def num_common_blocks(blocks: BlockManager, beams: abc.Sequence[Sequence]) -> int:
    """Leading blocks, all computed, that all beams of a request hold."""
    computed = (beams[0].num_tokens - 1) // blocks.block_size
    common = [len(set(column)) == 1 for column in zip(*(beam.block_table for beam in beams), strict=False)]
    return min(computed, [*common, False].index(False))


def num_shared_tokens(blocks: BlockManager, sequence: Sequence) -> int:
    """Tokens of the leading blocks of `sequence` that the prefix cache finds and that others hold too."""
    table = sequence.block_table[: sequence.num_registered_blocks]
    num_shared = next((i for i, block in enumerate(table) if not blocks.pool.is_shared(block)), len(table))
    return num_shared * blocks.block_size
