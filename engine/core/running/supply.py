"""Who may come to fill a block that the head of the queue could share, so that it needs one block less."""

from __future__ import annotations

from engine.core.kv.block_manager import BlockManager
from engine.core.running.running_set import RunningSet
from engine.core.sequence import Sequence


def suppliers(running: RunningSet, waiting: Sequence, index: int, blocks: BlockManager) -> list[Sequence]:
    """Decodes that may come to fill the block that `waiting` has as number `index` among its known tokens."""
    if running.lag and running.decodes.tokens_per_decode == 1:
        # A block is registered when its sequence takes the next one, so it wins nothing. Drafts take that one before.
        return []
    if not waiting.request.reads_prefix_cache or not blocks.enable_prefix_caching:
        return []
    hashes = waiting.block_hashes or []
    if index >= min(len(hashes), waiting.num_tokens // blocks.block_size):
        return []
    return [sequence for sequence in running.decodes.findable if _may_fill(sequence, hashes, index)]


def _may_fill(sequence: Sequence, hashes: list[int], index: int) -> bool:
    """Whether `sequence` may come to hold the block `index` of `hashes`, as far as an engine can know.

    What it will generate a simulation may have been told, but plans as if it had not.
    """
    known, num_registered = sequence.block_hashes or [], sequence.num_registered_blocks
    can_fill = num_registered <= index and (sequence.token_ids is not None or index < len(known))
    return can_fill and known[:num_registered] == hashes[:num_registered]
