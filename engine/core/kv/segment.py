"""Free blocks that keep their order: those that one release has freed (`block_pool.py`).

Blocks are freed and taken many at a time, so the queue of a pool holds segments: the blocks of one release, in the
order of their block table, so that the last goes first. A hit takes the first blocks out of a segment; others only
where equal blocks of other sequences are found before them. A segment of unhashed blocks, which nobody can bring back,
is taken as a whole when it is the oldest: what is left of it goes next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress


class Segment:
    """Blocks that were freed together; `hashes[offset + i]` is the hash of `blocks[i]`, or all are unhashed.

    The hashes are the sequence's own list: a copy for every release would take longer than all else here. A segment
    with `pages` has no blocks: it stands for memory that layers with a sliding window have given back.
    """

    __slots__ = ("blocks", "hashes", "offset", "pages")

    def __init__(self, blocks: list[int], hashes: list[int], offset: int, pages: float = 0.0) -> None:
        self.pages = pages
        self.blocks = blocks
        self.hashes = hashes
        self.offset = offset

    def bring_back(self, blocks: list[int]) -> None:
        """Take these hashed blocks out of the segment; they are in the order that they have there."""
        count = len(blocks)
        if self.blocks[:count] == blocks:
            del self.blocks[:count]
            self.offset += count
            return
        is_left = [*map(set(self.blocks).difference(blocks).__contains__, self.blocks)]
        self.hashes = [*compress(self.hashes[self.offset :], is_left)]
        self.blocks = [*compress(self.blocks, is_left)]
        self.offset = 0


def check_queue(
    queue: Iterable[Segment], segment_of: Sequence[Segment | None], pages: float
) -> tuple[dict[int, int | None], list[int]]:
    """Prove that the segments of a pool's queue are sound, and that blocks know theirs; returns the hashes of blocks
    that have one, and the blocks without."""
    cached: dict[int, int | None] = {}
    unhashed: list[int] = []
    queued_pages = 0.0
    for segment in queue:
        left = segment.blocks
        queued_pages += segment.pages
        assert bool(left) != bool(segment.pages), "a segment has neither blocks nor pages, or both"
        if segment.hashes:
            assert all(segment_of[block] is segment for block in left), "a block is in another segment"
            cached |= zip(left, segment.hashes[segment.offset :], strict=False)
        else:
            unhashed += left
    assert {b for b, segment in enumerate(segment_of) if segment is not None} == cached.keys()
    assert queued_pages == pages, "pages of layers with a window are miscounted"
    return cached, unhashed
