"""The device's KV blocks: how many sequences hold each, and which free one goes next.

      free, unhashed ──take──▶ held by 1..n sequences ──register──▶ held, hashed
            ▲                        │ release                         │ release
            └────────────────────────┘                                 ▼
            └──────────── take (oldest first, hash dropped) ◀── free, hashed (LRU)

A hashed block that is free keeps its content until it is taken, and a hit brings it back. Unhashed blocks are taken
first; hashed ones least recently used first, a sequence's tail before its head, so that a cached block never
outlives the prefix it stands on. With one queue (`eviction="lru"`) whichever block was freed first is taken first,
hashed or not.

Layers with a sliding window may leave memory in the queue, too (`window_pages.py`). Then cached blocks and that are
limited to the memory of the free blocks, and the oldest go first. The queue holds segments (`free_queue.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain
from typing import Any

from engine.core.block_hashes import BlockHashes
from engine.core.kv.free.free_queue import FreeQueue, Segment
from engine.core.kv.free.window_pages import WindowPages
from engine.core.kv.pool import Evict, Pool, all_ids


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
        self._num_extra = 0  # references beyond the first, of all blocks together
        self.has_one_queue = has_one_queue
        self.tail_first = False
        self._evict = evict
        self._free = [*all_ids(num_blocks)]  # unhashed ones, which go before the queue, the last first
        self._queue = FreeQueue(num_blocks)
        self._shared: dict[int, int] = {}  # references beyond the first

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_extra_references(self) -> int:
        return self._num_extra

    @property
    def num_shared(self) -> int:
        return len(self._shared)

    @property
    def num_uncached(self) -> int:
        return 0 if self.has_one_queue else len(self._free)

    def is_queued(self, block: int) -> bool:
        return self._segment_of(block) is not None

    def count_queued(self, blocks: list[int]) -> int:
        place = num_queued = 0
        while place < len(blocks):
            hits, segment = self._hits_from(blocks, place)
            place += len(hits)
            if segment is not None:
                num_queued += len(hits)
        return num_queued

    def is_shared(self, block: int) -> bool:
        return block in self._shared

    def num_given_up_by(self, tables: list[list[int]]) -> tuple[int, int]:
        num_entries, shared = sum(map(len, tables)), self._shared
        if not shared:
            return num_entries, 0
        if len(tables) == 1:  # as nearly always
            held = self._shared_in(tables[0])
            return num_entries - len(held), sum([shared[block] == 1 for block in held])
        counts = Counter(chain.from_iterable([self._shared_in(table) for table in tables]))
        num_freed = num_entries - sum([count - (shared[block] + 1 == count) for block, count in counts.items()])
        return num_freed, sum([shared[block] <= count for block, count in counts.items()])

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
        place = 0
        while place < len(blocks):
            hits, segment = self._hits_from(blocks, place)
            place += len(hits)
            if segment is None:
                self._share(hits)
            else:
                self._num_free -= len(hits)
                self._num_cached -= len(hits)
                self._queue.bring_back(segment, hits)
        if self._pages is not None:
            self._forget_oldest(self._pages)

    def _hits_from(self, blocks: list[int], place: int) -> tuple[list[int], Segment | None]:
        """Those of `blocks` from `place` on that are held, or in the same segment, and that segment."""
        segment, end = self._segment_of(blocks[place]), place + 1
        if segment is not None and (num_leading := segment.num_leading(blocks, place)):
            return blocks[place : place + num_leading], segment
        while end < len(blocks) and self._segment_of(blocks[end]) is segment:
            end += 1
        return blocks[place:end], segment

    def _segment_of(self, block: int) -> Segment | None:
        """The segment of a block that is held or in the queue."""
        return None if block in self._shared else self._queue.find(block)

    def release(self, table: list[int], hashes: BlockHashes | None, num_hashed: int) -> None:
        """Drop a reference to every block of `table`, of which the first `num_hashed` can be found by these hashes.

        Blocks that become free go in this order: the unhashed ones, then the hashed, the tail before the head.
        """
        num_kept = 0  # leading blocks that others hold
        if self._shared and (shared := self._shared_in(table)):
            self.drop_shared(shared)
            if shared == table[: len(shared)]:  # a common prefix, as nearly always
                num_kept = len(shared)
            else:
                others = set(shared)
                if hashes is not None:
                    hashed = zip(table, hashes.part(0, num_hashed), strict=False)
                    hashes = BlockHashes([each for block, each in hashed if block not in others])
                    num_hashed = hashes.count
                table = [block for block in table if block not in others]
        self._num_free += len(table) - num_kept
        private = table[max(num_hashed, num_kept) :]
        if private:
            if self._pages is not None:
                self._pages.forget(private)
            if self.has_one_queue:
                self._queue.add(Segment(private, None, 0, len(private)))
            else:
                if not self.tail_first:
                    private.reverse()
                self._free += private
        if num_hashed > num_kept and hashes is not None:
            self._enqueue(table, hashes, num_kept, num_hashed)
        if self._pages is not None:
            self._forget_oldest(self._pages)

    def drop_shared(self, blocks: list[int]) -> None:
        shared: dict[Any, int] = self._shared
        ids: list[Any] = blocks  # here and below: a compiled core would make new objects of numbers
        for block in ids:
            num_left = shared[block] - 1
            if num_left:
                shared[block] = num_left
            else:
                del shared[block]
        self._num_extra -= len(blocks)

    def _share(self, blocks: list[int]) -> None:
        """Add a reference to each of `blocks`, which are held."""
        shared: dict[Any, int] = self._shared
        ids: list[Any] = blocks
        for block in ids:
            shared[block] = shared.get(block, 0) + 1
        self._num_extra += len(blocks)

    def _shared_in(self, table: list[int]) -> list[int]:
        """The blocks of `table` that several sequences hold, in order: most often its first ones, and all there are."""
        shared: dict[Any, int] = self._shared
        ids: list[Any] = table
        num_leading, num_ids = 0, len(ids)
        while num_leading < num_ids and ids[num_leading] in shared:
            num_leading += 1
        leading = table[:num_leading]
        if num_leading == len(shared):
            return leading
        return leading + [block for block in ids[num_leading:] if block in shared]

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
        assert {b: n - 1 for b, n in references.items() if n > 1} == self._shared, "reference counts are off"
        assert self._num_extra == sum(self._shared.values()), "extra references are miscounted"
        return {block: each for block, each in queued.items() if each is not None}

    def _queued_hashes(self) -> dict[int, int | None]:
        """The blocks in the queue with their hashes; proves that the queue is sound."""
        pages = self._pages.queued if self._pages else 0.0
        cached, unhashed = self._queue.check_integrity(pages)
        assert self.has_one_queue or not unhashed, "unhashed blocks are queued behind hashed ones"
        assert self._num_cached == len(cached), "cached blocks are miscounted"
        assert self._pages is None or self._num_cached + pages <= self._num_free, "more is cached than is free"
        return cached | dict.fromkeys(unhashed)
