"""What a sequence has in the tiers behind the device: hits of the prefix cache, and its KV while it is swapped out."""

from __future__ import annotations

from itertools import repeat

from engine.core.kv.block_manager import BlockManager
from engine.core.kv.prefix_match import NO_MATCH, PrefixMatch
from engine.core.kv.tier import DEVICE, Transfer
from engine.core.sequence import Sequence


def match_below(blocks: BlockManager, sequence: Sequence, match: PrefixMatch) -> PrefixMatch:
    """`match`, which is that of `sequence` on the device, continued in the tiers behind it.

    Beams that come back are seated together, so none of them can wait for blocks: they compute all again.
    """
    assert blocks.offload is not None
    if sequence.request.num_common_blocks is not None:
        return NO_MATCH
    if not sequence.request.reads_prefix_cache:
        return match
    match = blocks.offload.drop_unusable(match, blocks.pool, blocks.block_size)
    start, end = match.num_kept + len(match.blocks), (sequence.num_tokens - 1) // blocks.block_size
    hashes = blocks.hashes_of(sequence, end)[start:end]
    if not hashes:
        return match
    known = sequence.token_ids is not None
    contents = blocks.contents_of(sequence, start, end) if known else repeat(None)
    return blocks.offload.continue_match(match, hashes, contents, blocks.block_size)


def can_swap_out(blocks: BlockManager, sequence: Sequence) -> bool:
    """Whether the host tier has room for all computed tokens of `sequence`."""
    num_blocks = blocks.blocks_for(sequence.num_computed_tokens)
    return blocks.host is not None and 0 < num_blocks <= blocks.host.num_free_blocks


def swap_out(blocks: BlockManager, sequence: Sequence) -> list[Transfer]:
    """Move the computed blocks of `sequence` to the host tier and release all that it holds on the device."""
    assert blocks.host is not None
    sources = sequence.block_table[: blocks.blocks_for(sequence.num_computed_tokens)]
    sequence.host_blocks = blocks.host.take(len(sources))
    name, moves = blocks.host.name, zip(sources, sequence.host_blocks, strict=True)
    blocks.release(sequence)
    return [Transfer(DEVICE, source, name, target) for source, target in moves]


def swap_in(blocks: BlockManager, sequence: Sequence, num_tokens: int) -> list[Transfer]:
    """Give a swapped-out sequence device blocks for `num_tokens` tokens, its KV coming back into the first."""
    assert blocks.host is not None and sequence.host_blocks
    blocks.extend(sequence, num_tokens)
    moves = zip(sequence.host_blocks, sequence.block_table, strict=False)
    return [Transfer(blocks.host.name, source, DEVICE, target) for source, target in moves]


def land(blocks: BlockManager, sequence: Sequence) -> None:
    """What came from tiers for `sequence` is there."""
    blocks.drop_host_blocks(sequence)
    if blocks.offload is not None:
        blocks.offload.end_load(sequence)
