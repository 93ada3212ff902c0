"""What a sequence has in the tiers behind the device: hits of the prefix cache, and its KV while it is swapped out."""

from __future__ import annotations

from collections import abc
from itertools import repeat

from engine.core.kv.block_manager import BlockManager
from engine.core.kv.prefix_match import NO_MATCH, PrefixMatch
from engine.core.kv.tier import DEVICE, Transfer
from engine.core.sequence import Sequence


def match_below(blocks: BlockManager, sequence: Sequence, match: PrefixMatch) -> PrefixMatch:
    """`match`, which is that of `sequence` on the device, continued in the tiers behind it.

    Beams that come back are seated together, so none of them can wait for blocks: they compute what they did not keep.
    """
    assert blocks.offload is not None
    if sequence.request.num_common_blocks is not None:
        kept = len(sequence.block_table)
        return PrefixMatch([], kept * blocks.block_size, 0, False, kept) if kept else NO_MATCH
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


def blocks_to_swap(blocks: BlockManager, victims: abc.Sequence[Sequence]) -> int:
    """Blocks with computed tokens of a sequence, or of all beams of a request; a shared one counts once."""
    if len(victims) == 1:
        return blocks.blocks_for(victims[0].num_computed_tokens)
    return len({block for beam in victims for block in beam.block_table[: blocks.blocks_for(beam.num_computed_tokens)]})


def can_swap_out(blocks: BlockManager, victims: abc.Sequence[Sequence]) -> bool:
    """Whether the host tier has room for all computed tokens of a sequence, or of all beams of a request.

    Beams that are computing again what they lost do not go to the host: they are not in step.
    """
    if blocks.host is None or len(victims) > 1 and not all(beam.is_prefilled for beam in victims):
        return False
    return 0 < blocks_to_swap(blocks, victims) <= blocks.host.num_free_blocks


def swap_out(blocks: BlockManager, sequence: Sequence, copies: dict[int, int]) -> list[Transfer]:
    """Move the computed blocks of `sequence` to the host tier and release all that it holds on the device.

    `copies` are the blocks of the host that blocks of the device have been copied to for other beams of its request.
    """
    assert blocks.host is not None
    sources = sequence.block_table[: blocks.blocks_for(sequence.num_computed_tokens)]
    own = [source for source in sources if source not in copies] if copies else sources
    if own:
        copies |= zip(own, blocks.host.take(len(own)), strict=True)
    sequence.host_blocks = [copies[source] for source in sources]
    blocks.release(sequence)
    return [Transfer(DEVICE, source, blocks.host.name, copies[source]) for source in own]


def swap_in(blocks: BlockManager, sequence: Sequence, num_tokens: int) -> list[Transfer]:
    """Give a swapped-out sequence device blocks for `num_tokens` tokens, its KV coming back into the first."""
    assert blocks.host is not None and sequence.host_blocks
    blocks.extend(sequence, num_tokens)
    moves = zip(sequence.host_blocks, sequence.block_table, strict=False)
    return [Transfer(blocks.host.name, source, DEVICE, target) for source, target in moves]


def swap_in_beams(blocks: BlockManager, beams: abc.Sequence[Sequence]) -> list[Transfer]:
    """`swap_in` of all beams of a request, which share on the device what they share on the host."""
    assert blocks.host is not None
    placed: dict[int, int] = {}
    transfers = []
    for beam in beams:
        sources = beam.host_blocks or []
        own = [source for source in sources if source not in placed]
        blocks.pool.hold([placed[source] for source in sources if source in placed])
        placed |= zip(own, blocks.take(len(own)), strict=True)
        beam.block_table = [placed[source] for source in sources]
        transfers += [Transfer(blocks.host.name, source, DEVICE, placed[source]) for source in own]
    return transfers


def land(blocks: BlockManager, sequence: Sequence) -> None:
    """What came from tiers for `sequence` is there."""
    blocks.drop_host_blocks(sequence)
    if blocks.offload is not None:
        blocks.offload.end_load(sequence)
