"""Blocks that a preempted sequence keeps while it waits: a prefix of full blocks, which it gives up from the tail.

What it does not keep it can find in the prefix cache, by a name of its own if nobody knows the content.
"""

from __future__ import annotations

from engine.core.block_hashes import BlockHashes
from engine.core.kv.block_manager import BlockManager
from engine.core.sequence import Sequence


def name_content(blocks: BlockManager, sequence: Sequence, num_tokens: int) -> None:
    """Give the unknown content of the first `num_tokens` tokens, which are computed, a name of its own.

    So a sequence that gives up its blocks can find them again.
    """
    if sequence.token_ids is not None or not blocks.enable_prefix_caching:
        return
    hashes = list(sequence.block_hashes or ())
    request = sequence.request
    # The order is unique in a scheduler, and the id among servers, which may share a store.
    name = (request.request_id << 32 | request.order) << 16 | request.sequences.index(sequence)
    own = -1 - (name << 32)  # below 0, where no given identity is
    hashes.extend(range(own - len(hashes), own - num_tokens // blocks.block_size, -1))
    sequence.hashes = BlockHashes(hashes)
    blocks.register(sequence, num_tokens)


def keep_prefix(blocks: BlockManager, sequence: Sequence, num_tokens: int) -> None:
    """Release all but the full blocks among the first `num_tokens` tokens, whose content is known and computed.

    The prefix cache must know what is kept, so that a match goes on there when `sequence` is admitted again.
    """
    blocks.release_tail(sequence, num_tokens // blocks.block_size)
    sequence.set_computed(len(sequence.block_table) * blocks.block_size)


def give_up(blocks: BlockManager, sequence: Sequence, num_blocks: int) -> None:
    """Release the last `num_blocks` of the kept blocks, or all; one that others hold too does not become free."""
    num_kept = max(0, len(sequence.block_table) - num_blocks)
    blocks.release_tail(sequence, num_kept)
    sequence.set_computed(num_kept * blocks.block_size)


def num_shared_tokens(blocks: BlockManager, sequence: Sequence) -> int:
    """Tokens of the leading blocks of `sequence` that the prefix cache finds and that others hold too."""
    table = sequence.block_table[: sequence.num_registered_blocks]
    num_shared = next((i for i, block in enumerate(table) if not blocks.pool.is_shared(block)), len(table))
    return num_shared * blocks.block_size
