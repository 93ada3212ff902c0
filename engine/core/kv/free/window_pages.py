"""Memory that layers with a sliding window have given back, and that waits in the queue of free blocks.

In vLLM layers with and without a window take pages from one pool (its hybrid manager). Of layers with one, a sequence
holds the last few pages only. What it gave back before can still be found, and goes when it is the oldest. Who finds a
prefix there brings back the last window only (`find_longest_cache_hit` of SlidingWindowManager); the rest goes on
growing old. So a prefix that was computed once and found often takes less memory than one that was just computed.
"""

from __future__ import annotations

from engine.core.kv.free.free_queue import Segment


class WindowPages:
    """The pages of cached blocks in layers with a window, `per_block` for each, in memory of a block.

    Attributes:
        queued: memory of those in the queue.
    """

    def __init__(self, per_block: float) -> None:
        self._per_block = per_block
        self.queued = 0.0
        self._left: set[int] = set()  # blocks whose pages were given back before, or were never there

    def note_none(self, blocks: list[int]) -> None:
        """`blocks` have no such pages: they were copied, which copies the last window only."""
        self._left.update(blocks)

    def forget(self, blocks: list[int]) -> None:
        """The content of `blocks` is lost."""
        self._left.difference_update(blocks)

    def leave(self, blocks: list[int]) -> Segment | None:
        """What the queue gets of those of `blocks` that are freed for the first time."""
        fresh = [block for block in blocks if block not in self._left]
        if not fresh:
            return None
        self._left.update(fresh)
        pages = self._per_block * len(fresh)
        self.queued += pages
        return Segment([], None, 0, 0, pages)

    def take(self, segment: Segment, excess: float) -> bool:
        """Take up to `excess` of the memory of a queued segment; whether nothing is left of it."""
        taken = min(segment.pages, excess)
        segment.pages -= taken
        self.queued -= taken
        return segment.pages <= 0
