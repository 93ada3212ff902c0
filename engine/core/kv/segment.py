"""Free blocks that keep their order: those that one release has freed (`block_pool.py`).

Blocks are freed and taken many at a time, so the queue of a pool holds segments: the blocks of one release, in the
order of their block table, so that the last goes first. A hit takes the first blocks out of a segment; others only
where equal blocks of other sequences are found before them. A segment of unhashed blocks, which nobody can bring back,
is taken as a whole when it is the oldest: what is left of it goes next.
"""

from __future__ import annotations

from itertools import compress

from engine.core.block_hashes import BlockHashes


class Segment:
    """Blocks that were freed together: `table[start:end]`, with their hashes at the same places, if they have any.

    Table and hashes are the sequence's own: copies for every release would take longer than all else here. A segment
    with `pages` has no blocks: it stands for memory that layers with a sliding window have given back.
    """

    __slots__ = ("table", "hashes", "start", "end", "pages")

    def __init__(self, table: list[int], hashes: BlockHashes | None, start: int, end: int, pages: float = 0.0) -> None:
        self.table = table
        self.pages = pages
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
