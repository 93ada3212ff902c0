"""What a sequence has in the tiers behind the device: hits of the prefix cache, and its KV while it is swapped out."""

from __future__ import annotations

from itertools import repeat

from engine.core.kv.block_manager import BlockManager
from engine.core.kv.prefix_match import PrefixMatch
from engine.core.kv.tiers.tier import DEVICE, Transfer
from engine.core.sequence import Sequence


def match_below(blocks: BlockManager, sequence: Sequence, match: PrefixMatch) -> PrefixMatch:
    """`match`, which is that of `sequence` on the device, continued in the tiers behind it."""
    assert blocks.offload is not None
    if not sequence.request.reads_prefix_cache:
        return match
    match = blocks.offload.drop_unusable(match, blocks.pool, blocks.block_size)
    start, end = match.num_kept + len(match.blocks), (sequence.num_tokens - 1) // blocks.block_size
    hashes = blocks.hashes_of(sequence, end)[start:end]
    if not hashes:
        return match
    known = sequence.token_ids is not None
    contents = blocks.cache.contents_of(sequence, start, end) if known else repeat(None)
    return blocks.offload.continue_match(match, hashes, contents, blocks.block_size)


def can_swap_out(blocks: BlockManager, sequence: Sequence) -> bool:
    """Whether the host tier has room for all computed tokens of a sequence."""
    if blocks.host is None:
        return False
    return 0 < blocks.blocks_for(sequence.num_computed_tokens) <= blocks.host.num_free_blocks


def swap_out(blocks: BlockManager, sequence: Sequence) -> list[Transfer]:
    """Move the computed blocks of `sequence` to the host tier and release all that it holds on the device."""
    assert blocks.host is not None
    sources = sequence.block_table[: blocks.blocks_for(sequence.num_computed_tokens)]
    targets = sequence.host_blocks = blocks.host.take(len(sources))
    blocks.release(sequence)
    moves = zip(sources, targets, strict=True)
    return [Transfer(DEVICE, source, blocks.host.name, target) for source, target in moves]


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
