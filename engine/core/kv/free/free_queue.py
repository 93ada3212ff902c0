"""The queue of free blocks that keep their order, those that one release has freed (`block_pool.py`) together.

Blocks are freed and taken many at a time, so the queue of a pool holds segments: the blocks of one release, in the
order of their block table, so that the last goes first. A hit takes the first blocks out of a segment; others only
where equal blocks of other sequences are found before them. A segment of unhashed blocks, which nobody can bring back,
is taken as a whole when it is the oldest: what is left of it goes next.

    queue    segment ── segment ── segment        the oldest goes first, each from its end
               │first     │first     │first
               ▼          ▼          ▼
             block      block      block          hits nearly always begin with the first block of a segment

Where each other block is, is noted only when a hit asks for it: of most segments nobody ever does.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import compress

from engine.core.block_hashes import BlockHashes
from engine.core.kv.shared_blocks import SharedBlocks


class Segment:
    """Blocks that were freed together: `table[start:end]`, with their hashes at the same places, if they have any.

    Table and hashes are the sequence's own: copies for every release would take longer than all else here. A segment
    with `pages` has no blocks: it stands for memory that layers with a sliding window have given back. The blocks of
    one that `is_cached` have content, hashes or not.
    """

    __slots__ = ("table", "hashes", "start", "end", "pages", "is_cached")

    def __init__(
        self,
        table: list[int],
        hashes: BlockHashes | None,
        start: int,
        end: int,
        pages: float = 0.0,
        *,
        is_cached: bool = False,
    ) -> None:
        self.table = table
        self.pages = pages
        self.is_cached = is_cached
        self.hashes = hashes
        self.start = start
        self.end = end

    def num_leading(self, blocks: list[int], place: int) -> int:
        """How many of `blocks`, from `place` on, are its first ones in that order."""
        table, start = self.table, self.start
        num_blocks, longest = 0, min(self.end - start, len(blocks) - place)
        while num_blocks < longest and table[start + num_blocks] == blocks[place + num_blocks]:
            num_blocks += 1
        return num_blocks

    def bring_back(self, blocks: list[int]) -> None:
        """Take these hashed blocks out of the segment; they are in the order that they have there."""
        start, end = self.start, self.end
        after = start + len(blocks)
        if self.table[start:after] == blocks:
            self.start = after
            return
        assert self.hashes is not None
        left = self.table[start:end]
        is_left = [*map(set(left).difference(blocks).__contains__, left)]
        self.hashes = BlockHashes([*compress(self.hashes.part(start, end), is_left)])
        self.table = [*compress(left, is_left)]
        self.start, self.end = 0, len(self.table)


class FreeQueue:
    """Segments of free blocks of a pool of `num_blocks`, none of them empty.

    Args:
        sharing: which blocks several sequences hold, none of which is in a segment.

    Attributes:
        segments: all of them, the oldest first.
    """

    def __init__(self, num_blocks: int, sharing: SharedBlocks) -> None:
        self._sharing = sharing
        self.segments: OrderedDict[Segment, None] = OrderedDict()
        self._with_first: dict[int, Segment] = {}  # hashed ones
        self._unnoted: dict[Segment, None] = {}  # hashed ones, of whose blocks `_of_block` does not know
        self._of_block: list[Segment | None] = [None] * num_blocks

    @property
    def has_hashed(self) -> bool:
        """Whether any block in the queue has a hash."""
        return bool(self._with_first)

    def add(self, segment: Segment) -> None:
        self.segments[segment] = None
        if segment.hashes is not None:
            self._with_first[segment.table[segment.start]] = segment
            self._unnoted[segment] = None

    def oldest(self) -> Segment:
        """The first segment that has blocks; there must be one."""
        oldest = next(iter(self.segments))
        return next(segment for segment in self.segments if not segment.pages) if oldest.pages else oldest

    def parts(self, blocks: list[int]) -> list[tuple[list[int], Segment | None]]:
        """`blocks`, which are held or have a hash, in parts that are held, or in the same segment, each with that."""
        parts: list[tuple[list[int], Segment | None]] = []
        end = 0
        while end < len(blocks):
            start, segment = end, self.find(blocks[end])
            if segment is None:
                end += self._sharing.num_leading(blocks, start) or 1
            elif num_leading := segment.num_leading(blocks, start):
                end += num_leading
            else:
                while end < len(blocks) and self.find(blocks[end]) is segment:
                    end += 1
            parts.append((blocks[start:end], segment))
        return parts

    def find(self, block: int) -> Segment | None:
        """The segment of a block; None of one that is not free, or has no hash."""
        if block in self._sharing.references:
            return None
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

    def check_integrity(self, pages: float) -> tuple[dict[int, int | None], list[int]]:
        """Prove that each block is found in its segment, and that so many `pages` are there; raises AssertionError.

        Returns the hashes of the blocks that have one, and the blocks without.
        """
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
        cached: dict[int, int | None] = {}
        unhashed: list[int] = []
        for segment in self.segments:
            if segment.hashes is None:
                unhashed += segment.table[segment.start : segment.end]
            else:
                cached |= zip(hashed[segment], segment.hashes.part(segment.start, segment.end), strict=True)
        return cached, unhashed
