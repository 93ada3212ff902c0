"""The device's KV blocks: how many sequences hold each, and which free one goes next.

      free, unhashed ──take──▶ held by 1..n sequences ──register──▶ held, hashed
            ▲                        │ release                         │ release
            └────────────────────────┘                                 ▼
            └──────────── take (oldest first, hash dropped) ◀── free, hashed (LRU)

A hashed block that is free keeps its content until it is taken, and a hit brings it back. Unhashed blocks are taken
first; hashed ones least recently used first, a sequence's tail before its head, so that a cached block never
outlives the prefix it stands on. With one queue (`eviction="lru"`) whichever block was freed first is taken first,
hashed or not.

Blocks are freed and taken many at a time, so the queue holds segments: the blocks that one release freed, in the order
in which they go. A hit takes blocks out of the middle of a segment: they stay in its list, stale, and are skipped.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from itertools import compress, repeat

Evict = Callable[[list[int], list[int]], None]


class _Segment:
    """Blocks that were freed together and the hashes of their content, none for unhashed ones."""

    __slots__ = ("blocks", "hashes", "start", "num_stale")

    def __init__(self, blocks: list[int], hashes: list[int]) -> None:
        self.blocks = blocks
        self.hashes = hashes
        self.start = 0  # blocks before it were taken
        self.num_stale = 0  # of the blocks from there on, how many were brought back by hits

    @property
    def num_blocks(self) -> int:
        return len(self.blocks) - self.start - self.num_stale


class BlockPool:
    """`num_blocks` blocks.

    Args:
        has_one_queue: take free blocks in the order they were freed, hashed or not, instead of unhashed ones first.
        evict: called with blocks that are taken and the hashes under which their content could be found.

    Attributes:
        num_free: blocks that nobody holds, cached or not.
    """

    def __init__(self, num_blocks: int, *, has_one_queue: bool, evict: Evict) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.has_one_queue = has_one_queue
        self._evict = evict
        self._free = [] if has_one_queue else list(range(num_blocks - 1, -1, -1))  # unhashed ones, the last first
        self._queue: OrderedDict[_Segment, None] = OrderedDict()
        self._segment_of: list[_Segment | None] = [None] * num_blocks  # of queued blocks
        self._shared: dict[int, int] = {}  # references beyond the first
        if has_one_queue:
            self._enqueue(list(range(num_blocks)), [])

    def is_queued(self, block: int) -> bool:
        """Whether a block is free but kept in the queue, so that it can be brought back."""
        return self._segment_of[block] is not None

    def count_queued(self, blocks: list[int]) -> int:
        segments = [*map(self._segment_of.__getitem__, blocks)]
        return len(blocks) - segments.count(None)

    def is_shared(self, block: int) -> bool:
        return block in self._shared

    def num_references(self, block: int) -> int:
        """How many sequences hold a block that is held."""
        return 1 + self._shared.get(block, 0)

    def take(self, count: int) -> list[int]:
        """Take `count` blocks, which must be free; their content is lost.

        They come in ascending order, as far as they lie together: a CPU reads them faster that way.
        """
        self.num_free -= count
        free = self._free
        if len(free) >= count:
            split = len(free) - count
            blocks = free[split:]
            blocks.reverse()
            del free[split:]
            return blocks
        blocks = free.copy()
        free.clear()
        while (missing := count - len(blocks)) > 0:
            blocks += self._dequeue(missing)
        blocks.sort()
        return blocks

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of `blocks`; queued ones become held again."""
        segment_of, shared = self._segment_of, self._shared
        for block in blocks:
            segment = segment_of[block]
            if segment is None:
                shared[block] = shared.get(block, 0) + 1
                continue
            segment_of[block] = None
            self.num_free -= 1
            segment.num_stale += 1
            if not segment.num_blocks:
                del self._queue[segment]

    def release(self, table: list[int], hashes: list[int]) -> None:
        """Drop a reference to every block of `table`, of which the first `len(hashes)` can be found by these hashes.

        Blocks that become free go in this order: the unhashed ones, then the hashed, the tail before the head.
        """
        if self._shared and (shared := self._shared.keys() & table):
            for block in shared:
                self.drop_shared(block)
            count, num_hashed = len(shared), len(hashes)
            if shared.issuperset(table[:count]):  # a common prefix, as nearly always
                table, hashes = table[count:], hashes[count:]
            else:
                hashes = [each for block, each in zip(table, hashes, strict=False) if block not in shared]
                unhashed = [block for block in table[num_hashed:] if block not in shared]
                table = [block for block in table[:num_hashed] if block not in shared] + unhashed
        num_hashed = len(hashes)
        self.num_free += len(table)
        private = table[: num_hashed - 1 if num_hashed else None : -1] if len(table) > num_hashed else []
        if private:
            if self.has_one_queue:
                self._enqueue(private, [])
            else:
                self._free.extend(private)
        if num_hashed:
            self._enqueue(table[num_hashed - 1 :: -1], hashes[::-1])

    def drop_shared(self, block: int) -> None:
        """Give up one of at least two references to a block."""
        if self._shared[block] == 1:
            del self._shared[block]
        else:
            self._shared[block] -= 1

    def _enqueue(self, blocks: list[int], hashes: list[int]) -> None:
        segment = _Segment(blocks, hashes)
        self._queue[segment] = None
        segment_of = self._segment_of
        for block in blocks:
            segment_of[block] = segment

    def _dequeue(self, count: int) -> list[int]:
        """Take up to `count` blocks from the oldest segment."""
        segment = next(iter(self._queue))
        start, segment_of = segment.start, self._segment_of
        end = start + count
        blocks, hashes = segment.blocks[start:end], segment.hashes[start:end]
        if segment.num_stale:
            is_here = [segment_of[block] is segment for block in blocks]
            segment.num_stale -= is_here.count(False)
            hashes = [*compress(hashes, is_here)]
            blocks = [*compress(blocks, is_here)]
        segment.start = min(end, len(segment.blocks))
        if not segment.num_blocks:
            del self._queue[segment]
        for block in blocks:
            segment_of[block] = None
        if hashes:
            self._evict(blocks, hashes)
        return blocks

    def check_integrity(self, references: Counter[int]) -> dict[int, int]:
        """Prove the invariants, given how often sequences refer to each block; returns the hashes of queued blocks.

        Raises:
            AssertionError: a block is lost, free while it is held, or held with another count.
        """
        queued = {}
        for segment in self._queue:
            left = segment.blocks[segment.start :]
            hashes = segment.hashes[segment.start :] or repeat(None)
            valid = {b: h for b, h in zip(left, hashes, strict=False) if self._segment_of[b] is segment}
            assert len(valid) == segment.num_blocks > 0, "stale blocks are miscounted"
            queued.update(valid)
        assert {b for b, segment in enumerate(self._segment_of) if segment is not None} == queued.keys()
        free = Counter([*self._free, *queued])
        assert all(count == 1 for count in free.values()), "a block is free twice"
        assert len(free) == self.num_free, "the free blocks are miscounted"
        assert not free.keys() & references.keys(), "a block is free and referenced"
        assert free.keys() | references.keys() == set(range(self.num_blocks)), "a block is lost"
        assert {b: n - 1 for b, n in references.items() if n > 1} == self._shared, "reference counts are off"
        assert self.has_one_queue or None not in queued.values(), "an unhashed block is kept as cached"
        return {block: each for block, each in queued.items() if each is not None}
