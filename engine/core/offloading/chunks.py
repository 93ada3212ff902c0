"""The chunks that a prompt or an answer is stored in: blocks of the device that are copied and found together."""

from __future__ import annotations

from collections import abc

from engine.core.sequence import Sequence

HashesOf = abc.Callable[[Sequence, int], list[int]]


class Chunks:
    """Chunks of `num_blocks` blocks of `block_size` tokens.

    Args:
        hashes_of: as `BlockManager.hashes_of`.
    """

    def __init__(self, num_blocks: int, block_size: int, hashes_of: HashesOf) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_tokens = num_blocks * block_size
        self.hashes_of = hashes_of

    def of(self, sequence: Sequence, num_tokens: int) -> list[int]:
        """Hashes of the full chunks of the first `num_tokens` tokens."""
        size, hashes = self.num_blocks, self.hashes_of(sequence, num_tokens // self.block_size)
        return hashes[size - 1 : num_tokens // self.num_tokens * size : size]
