"""The queue of free blocks that keep their order, and in which of its segments a block is.

    queue    segment ── segment ── segment        the oldest goes first, each from its end
               │first     │first     │first
               ▼          ▼          ▼
             block      block      block          hits nearly always begin with the first block of a segment

Where each other block is, is noted only when a hit asks for it: of most segments nobody ever does.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.core.kv.segment import Segment


class FreeQueue:
    """Segments of free blocks of a pool of `num_blocks`, none of them empty.

    Attributes:
        segments: all of them, the oldest first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.segments: OrderedDict[Segment, None] = OrderedDict()
        self._with_first: dict[int, Segment] = {}  # hashed ones
        self._unnoted: dict[Segment, None] = {}  # hashed ones, of whose blocks `_of_block` does not know
        self._of_block: list[Segment | None] = [None] * num_blocks

    def add(self, segment: Segment) -> None:
        self.segments[segment] = None
        if segment.hashes is not None:
            self._with_first[segment.table[segment.start]] = segment
            self._unnoted[segment] = None

    def find(self, block: int) -> Segment | None:
        """The segment of a block; None of one that is not free, or has no hash."""
        segment = self._with_first.get(block)
        if segment is not None:
            return segment
        if self._unnoted:
            self._note_all()
        return self._of_block[block]

    def cut(self, segment: Segment, end: int) -> None:
        """The blocks of a segment from place `end` on are taken."""
        if segment in self._unnoted:
            if end == segment.start:
                del self._unnoted[segment]
        elif segment.hashes is not None:
            self._forget(segment.table[end : segment.end])
        segment.end = end
        if end == segment.start:
            self._drop(segment, segment.table[end])

    def bring_back(self, segment: Segment, blocks: list[int]) -> None:
        """These blocks of a segment, in the order that they have there, are held again."""
        first = segment.table[segment.start]
        if segment not in self._unnoted:
            self._forget(blocks)
        segment.bring_back(blocks)
        if segment.start == segment.end:
            self._unnoted.pop(segment, None)
            self._drop(segment, first)
        elif first == blocks[0]:
            del self._with_first[first]
            self._with_first[segment.table[segment.start]] = segment

    def _drop(self, segment: Segment, first: int) -> None:
        """A segment with this first block has become empty."""
        del self.segments[segment]
        if segment.hashes is not None:
            del self._with_first[first]

    def _note_all(self) -> None:
        of_block = self._of_block
        for segment in self._unnoted:
            table = segment.table
            for place in range(segment.start, segment.end):
                of_block[table[place]] = segment
        self._unnoted.clear()

    def _forget(self, blocks: list[int]) -> None:
        of_block = self._of_block
        for block in blocks:
            of_block[block] = None

    def check_integrity(self, pages: float) -> None:
        """Prove that each block is found in its segment, and that so many `pages` are there; raises AssertionError."""
        of_hashed = [segment for segment in self.segments if segment.hashes is not None]
        hashed = {segment: segment.table[segment.start : segment.end] for segment in of_hashed}
        for segment in self.segments:
            assert (segment.start < segment.end) != (segment.pages > 0), (
                "a segment has neither blocks nor pages, or both"
            )
        assert sum(segment.pages for segment in self.segments) == pages, "pages of layers with a window are miscounted"
        assert self._with_first == {blocks[0]: segment for segment, blocks in hashed.items()}, (
            "a segment has another first block"
        )
        assert self._unnoted.keys() <= hashed.keys(), "a segment is gone and waits to be noted"
        noted = {block: segment for segment in hashed.keys() - self._unnoted.keys() for block in hashed[segment]}
        found = {block: segment for block, segment in enumerate(self._of_block) if segment is not None}
        assert found == noted, "a block is in another segment"
