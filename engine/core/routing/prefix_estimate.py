"""What a router can know of a server's prefix cache: the prompts that it has sent there.

The blocks of a prompt are used from the last to the first, so that a block is never older than those that follow it:
the oldest are dropped first, as the server itself evicts them, and what is left of a prompt is always its beginning.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, abc


class PrefixEstimate:
    """The `capacity` blocks last used of those that were sent to a server; capacity >= 0."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()  # by hash, the block used last at the end

    def __len__(self) -> int:
        return len(self._blocks)

    def num_hits(self, hashes: abc.Sequence[int]) -> int:
        """How many of the leading blocks of a prompt are there."""
        blocks = self._blocks
        return bisect_left(hashes, True, key=lambda block: block not in blocks)

    def add(self, hashes: abc.Sequence[int]) -> None:
        """A prompt with these full blocks is sent to the server."""
        blocks = self._blocks
        for block in reversed(hashes):
            blocks[block] = None
            blocks.move_to_end(block)
        for _ in range(len(blocks) - self._capacity):
            blocks.popitem(last=False)
