"""The device's KV blocks: how many sequences hold each, and which free one goes next.

      free, empty ──take──▶ held by 1..n sequences ──step──▶ held, full
            ▲                     │ release                      │ release
            └─────────────────────┘                              ▼
            └────────── take (oldest first, hash dropped) ◀── free, cached (LRU)

A cached block that is free keeps its content until it is taken, and a hit brings back one that has a hash; a full one
of which the content is unknown has none, but takes its turn. Blocks without content are taken first; cached ones least
recently used first, a sequence's tail before its head, so that a cached block never outlives the prefix it stands on.
With one queue (`eviction="lru"`) whichever block was freed first goes first, cached or not.

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
        self._free = [*all_ids(num_blocks)]  # those that go before the queue, the last first
        self._sharing = SharedBlocks()
        self._shared = self._sharing.references
        self._queue = FreeQueue(num_blocks, self._sharing)

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
        return self._queue.find(block) is not None

    def count_queued(self, blocks: list[int]) -> int:
        return sum([len(hits) for hits, segment in self._queue.parts(blocks) if segment is not None])

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
        """What `take` gives for each of `counts` in turn; at once, as the oldest takes longer to find than to take."""
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
        for hits, segment in self._queue.parts(blocks):
            if segment is None:
                self._sharing.add(hits)
            else:
                self._num_free -= len(hits)
                self._num_cached -= len(hits)
                self._queue.bring_back(segment, hits)
        if self._pages is not None:
            self._forget_oldest(self._pages)

    def release(self, table: list[int], hashes: BlockHashes | None, num_hashed: int, num_full: int = 0) -> None:
        """As of `Pool`. Blocks that become free go in this order: those without content, then the cached ones, the tail
        before the head."""
        num_kept = 0  # leading blocks that others hold
        if self._shared and (shared := self._sharing.among(table)):
            self._sharing.drop(shared)
            if shared == table[: len(shared)]:  # a common prefix, as nearly always
                num_kept = len(shared)
            else:
                table, hashes, num_hashed, num_full = without(shared, table, hashes, num_hashed, num_full)
        self._num_free += len(table) - num_kept
        if self._pages is None and not self._queue.has_hashed:
            num_full = 0  # nobody can tell in what order blocks go that nobody can find
        first_private = max(num_hashed, num_kept)
        first_empty = max(first_private, num_full)
        if empty := table[first_empty:]:
            if self._pages is not None:
                self._pages.forget(empty)
            if self.has_one_queue:
                self._queue.add(Segment(empty, None, 0, len(empty)))
            else:
                if not self.tail_first:
                    empty.reverse()
                self._free += empty
        if first_empty > first_private:
            self._enqueue(table, None, first_private, first_empty)
        if num_hashed > num_kept and hashes is not None:
            self._enqueue(table, hashes, num_kept, num_hashed)
        if self._pages is not None:
            self._forget_oldest(self._pages)

    def drop_shared(self, blocks: list[int]) -> None:
        self._sharing.drop(blocks)

    def note_loaded(self, blocks: list[int]) -> None:
        if self._pages is not None:
            self._pages.note_none(blocks)

    def _enqueue(self, table: list[int], hashes: BlockHashes | None, start: int, end: int) -> None:
        if self._pages is not None and (left := self._pages.leave(table[start:end])):
            self._queue.add(left)
        self._queue.add(Segment(table, hashes, start, end, is_cached=True))
        self._num_cached += end - start

    def _forget_oldest(self, pages: WindowPages) -> None:
        """Drop the oldest pages and the content of the oldest cached blocks that free blocks have no memory for."""
        while (excess := self._num_cached + pages.queued - self._num_free) > 0:
            oldest = next(segment for segment in self._queue.segments if segment.pages or segment.is_cached)
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
        if (hashes := segment.hashes) is None and (self._pages is None or not segment.is_cached):
            self._queue.cut(segment, start)
            self._free = table[start:first]
            self._num_cached -= segment.is_cached * (end - start)
            return blocks
        self._queue.cut(segment, first)
        self._num_cached -= end - first
        if self._pages is not None:
            self._pages.forget(blocks)
        if hashes is not None:
            self._evict(table, hashes, first, end)
        return blocks

    def check_integrity(self, references: Counter[int]) -> dict[int, int]:
        """Prove that no block is lost, free while it is held, or held with another count, given how often sequences
        refer to each; returns the hashes of queued blocks. Raises AssertionError."""
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
        hashed, unhashed = self._queue.check_integrity(pages)
        cached = sum(segment.end - segment.start for segment in self._queue.segments if segment.is_cached)
        assert self.has_one_queue or cached == len(hashed) + len(unhashed), "blocks without content are queued"
        assert self._num_cached == cached, "cached blocks are miscounted"
        assert self._pages is None or self._num_cached + pages <= self._num_free, "more is cached than is free"
        return hashed | dict.fromkeys(unhashed)
