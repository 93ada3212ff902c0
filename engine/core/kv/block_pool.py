"""The device's KV blocks: how many sequences hold each, and which free one goes next.

      free, unhashed ──take──▶ held by 1..n sequences ──register──▶ held, hashed
            ▲                        │ release                         │ release
            └────────────────────────┘                                 ▼
            └──────────── take (oldest first, hash dropped) ◀── free, hashed (LRU)

A hashed block that is free keeps its content until it is taken, and a hit brings it back. Unhashed blocks are taken
first; hashed ones least recently used first, a sequence's tail before its head, so that a cached block never outlives
the prefix it stands on. With one queue (`eviction="lru"`) whichever block was freed first goes first, hashed or not.

Layers with a sliding window may leave memory in the queue, too (`window_pages.py`). Then cached blocks and that are
limited to the memory of the free blocks, and the oldest go first. The queue holds segments (`free_queue.py`).
"""

from __future__ import annotations

import math
from collections import Counter

from engine.core.block_hashes import BlockHashes
from engine.core.kv.free.free_queue import FreeQueue, Segment
from engine.core.kv.free.window_pages import WindowPages
from engine.core.kv.pool import Evict, Pool, all_ids
from engine.core.kv.shared_blocks import SharedBlocks, without


class BlockPool(Pool):
    """`num_blocks` blocks.

    Args:
        has_one_queue: take free blocks in the order they were freed, hashed or not, instead of unhashed ones first.
        evict: called with blocks that are taken and the hashes under which their content could be found.
        cached_size: memory of a block that was computed here and is cached, as a multiple of a held one's.

    Attributes:
        tail_first: of unhashed blocks that one release frees, the tail is taken before the head, as in vLLM. If not,
            the head is, so that block tables stay in ascending order.
    """

    def __init__(self, num_blocks: int, *, has_one_queue: bool, evict: Evict, cached_size: float = 1.0) -> None:
        self.num_blocks = num_blocks
        self._num_free = num_blocks
        self._pages = WindowPages(cached_size - 1) if cached_size > 1 else None
        self._num_cached = 0  # free blocks whose content can be found
        self.has_one_queue = has_one_queue
        self.tail_first = False
        self._evict = evict
        self._free = [*all_ids(num_blocks)]  # unhashed ones, which go before the queue, the last first
        self._queue = FreeQueue(num_blocks)
        self._sharing = SharedBlocks()
        self._shared = self._sharing.references

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_extra_references(self) -> int:
        return self._sharing.num_extra

    @property
    def num_shared(self) -> int:
        return len(self._shared)

    @property
    def num_uncached(self) -> int:
        return 0 if self.has_one_queue else len(self._free)

    def is_queued(self, block: int) -> bool:
        return self._segment_of(block) is not None

    def count_queued(self, blocks: list[int]) -> int:
        return sum([len(hits) for hits, segment in self._parts(blocks) if segment is not None])

    def is_shared(self, block: int) -> bool:
        return block in self._shared

    def num_given_up_by(self, tables: list[list[int]]) -> tuple[int, int]:
        return self._sharing.num_given_up_by(tables)

    def num_references(self, block: int) -> int:
        return 1 + self._shared.get(block, 0)

    def take(self, count: int) -> list[int]:
        """The same; blocks come in ascending order as far as they lie together: a CPU reads them faster that way."""
        self._num_free -= count
        if self._pages is not None:
            self._forget_oldest(self._pages)
        free = self._free
        if count == 1 and free:
            return [free.pop()]
        split = len(free) - count
        if split >= 0:
            blocks = free[split:]
            del free[split:]
            if not self.has_one_queue:  # in order as far as it goes: to sort takes longer than all else here
                blocks.reverse()
                return blocks
        else:
            self._free = []
            blocks = free or self._dequeue(count)
            while (missing := count - len(blocks)) > 0:
                blocks += self._dequeue(missing)
        blocks.sort()
        return blocks

    def give_back(self, blocks: list[int]) -> None:
        self._num_free += len(blocks)
        self._free += reversed(blocks)

    def take_each(self, counts: list[int]) -> list[list[int]]:
        """What `take` gives for each of `counts` in turn; at once, since what is found in the queue takes longer to
        find than to take."""
        if self._pages is not None:
            return [self.take(count) for count in counts]
        total, num_uncached = sum(counts), len(self._free)
        self._num_free -= total
        split = max(0, num_uncached - total)
        blocks = self._free[split:]
        del self._free[split:]
        blocks.reverse()  # in the order in which they go
        while (missing := total - len(blocks)) > 0:
            blocks += reversed(self._dequeue(missing))
        parts, end = [], 0
        for count in counts:
            start, end = end, end + count
            part = blocks[start:end]
            parts.append(part if end <= num_uncached and not self.has_one_queue else sorted(part))
        return parts

    def hold(self, blocks: list[int]) -> None:
        for hits, segment in self._parts(blocks):
            if segment is None:
                self._sharing.add(hits)
            else:
                self._num_free -= len(hits)
                self._num_cached -= len(hits)
                self._queue.bring_back(segment, hits)
        if self._pages is not None:
            self._forget_oldest(self._pages)

    def _parts(self, blocks: list[int]) -> list[tuple[list[int], Segment | None]]:
        """`blocks`, in parts that are held, or in the same segment, each with that segment."""
        parts: list[tuple[list[int], Segment | None]] = []
        end = 0
        while end < len(blocks):
            start, segment = end, self._segment_of(blocks[end])
            num_leading = 0 if segment is None else segment.num_leading(blocks, start)
            end += num_leading or 1
            while not num_leading and end < len(blocks) and self._segment_of(blocks[end]) is segment:
                end += 1
            parts.append((blocks[start:end], segment))
        return parts

    def _segment_of(self, block: int) -> Segment | None:
        """The segment of a block that is held or in the queue."""
        return None if block in self._shared else self._queue.find(block)

    def release(self, table: list[int], hashes: BlockHashes | None, num_hashed: int) -> None:
        """Drop a reference to every block of `table`, of which the first `num_hashed` can be found by these hashes.

        Blocks that become free go in this order: the unhashed ones, then the hashed, the tail before the head.
        """
        num_kept = 0  # leading blocks that others hold
        if self._shared and (shared := self._sharing.among(table)):
            self._sharing.drop(shared)
            if shared == table[: len(shared)]:  # a common prefix, as nearly always
                num_kept = len(shared)
            else:
                table, hashes, num_hashed = without(shared, table, hashes, num_hashed)
        self._num_free += len(table) - num_kept
        private = table[max(num_hashed, num_kept) :]
        if private:
            if self._pages is not None:
                self._pages.forget(private)
            if self.has_one_queue:
                self._queue.add(Segment(private, None, 0, len(private)))
            else:
                self._free += private if self.tail_first else private[::-1]
        if num_hashed > num_kept and hashes is not None:
            self._enqueue(table, hashes, num_kept, num_hashed)
        if self._pages is not None:
            self._forget_oldest(self._pages)

    def drop_shared(self, blocks: list[int]) -> None:
        self._sharing.drop(blocks)

    def note_loaded(self, blocks: list[int]) -> None:
        if self._pages is not None:
            self._pages.note_none(blocks)

    def _enqueue(self, table: list[int], hashes: BlockHashes, start: int, end: int) -> None:
        if self._pages is not None and (left := self._pages.leave(table[start:end])):
            self._queue.add(left)
        self._queue.add(Segment(table, hashes, start, end))
        self._num_cached += end - start

    def _forget_oldest(self, pages: WindowPages) -> None:
        """Drop the oldest pages and the content of the oldest cached blocks that free blocks have no memory for."""
        while (excess := self._num_cached + pages.queued - self._num_free) > 0:
            oldest = next(segment for segment in self._queue.segments if segment.pages or segment.hashes is not None)
            if not oldest.pages:
                self._free += self._dequeue_from(oldest, math.ceil(excess))
            elif pages.take(oldest, excess):
                del self._queue.segments[oldest]

    def _dequeue(self, count: int) -> list[int]:
        """Take up to `count` blocks from the oldest segment; no other free blocks go before it."""
        return self._dequeue_from(self._queue.oldest(), count)

    def _dequeue_from(self, segment: Segment, count: int) -> list[int]:
        table, start, end = segment.table, segment.start, segment.end
        first = max(start, end - count)
        blocks = table[first:end]
        if (hashes := segment.hashes) is None:
            self._queue.cut(segment, start)
            self._free = table[start:first]
            return blocks
        self._queue.cut(segment, first)
        self._num_cached -= end - first
        if self._pages is not None:
            self._pages.forget(blocks)
        self._evict(table, hashes, first, end)
        return blocks

    def check_integrity(self, references: Counter[int]) -> dict[int, int]:
        """Prove the invariants, given how often sequences refer to each block; returns the hashes of queued blocks.

        Raises:
            AssertionError: a block is lost, free while it is held, or held with another count.
        """
        queued = self._queued_hashes()
        free = Counter([*self._free, *queued])
        assert all(count == 1 for count in free.values()), "a block is free twice"
        assert len(free) == self._num_free, "the free blocks are miscounted"
        assert not free.keys() & references.keys(), "a block is free and referenced"
        assert len(free) + len(references) == self.num_blocks, "a block is lost"
        self._sharing.check_integrity(references)
        return {block: each for block, each in queued.items() if each is not None}

    def _queued_hashes(self) -> dict[int, int | None]:
        """The blocks in the queue with their hashes; proves that the queue is sound."""
        pages = self._pages.queued if self._pages else 0.0
        cached, unhashed = self._queue.check_integrity(pages)
        assert self.has_one_queue or not unhashed, "unhashed blocks are queued behind hashed ones"
        assert self._num_cached == len(cached), "cached blocks are miscounted"
        assert self._pages is None or self._num_cached + pages <= self._num_free, "more is cached than is free"
        return cached | dict.fromkeys(unhashed)
