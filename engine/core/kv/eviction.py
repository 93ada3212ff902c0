"""Which cached block goes first when blocks run out: the rules that rank blocks one by one, and the choice of a pool.

`BlockPool` takes the block that was freed first. `RankedPool` takes the one that was cached first ("fifo") or that
was hit least often ("lfu", and among equals the one cached first). No rule takes a block while one that follows it is
cached and free, which could not be found without it: a rule chooses among the ends of the cached prefixes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Literal

from engine.core.block_hashes import BlockHashes
from engine.core.kv.block_pool import BlockPool
from engine.core.kv.pool import Evict, Pool

Eviction = Literal["unhashed_first", "lru", "fifo", "lfu", "radix", "stored"]


class RankedPool(BlockPool):
    """A pool that takes unhashed blocks first, then cached ones by rank.

    A rank is how often a block was hit (0 with "fifo"), then when it was cached; the smallest goes first. It does not
    change while a block is free.
    """

    def __init__(self, num_blocks: int, *, by_hits: bool, evict: Evict) -> None:
        super().__init__(num_blocks, has_one_queue=False, evict=evict)
        self._by_hits = by_hits
        self._num_registrations = 0
        self._rank: dict[int, tuple[int, int]] = {}  # of cached blocks, held or free
        self._parent: dict[int, int | None] = {}  # the hash of the block before them
        self._hash: dict[int, int] = {}  # of free cached blocks
        self._with_hash: dict[int, list[int]] = {}  # the same by hash; several blocks can have one content
        self._num_followers: Counter[int] = Counter()  # free cached blocks by the hash of the block before them
        self._heap: list[tuple[tuple[int, int], int]] = []  # ranks and blocks; some entries are out of date

    def note_cached(self, blocks: list[int], hashes: list[int], parent: int | None) -> None:
        """`blocks` can be found from now on; the first of them follows the block with the hash `parent`."""
        self._num_registrations += 1
        for block, block_hash in zip(blocks, hashes, strict=True):
            self._rank[block] = 0, self._num_registrations
            self._parent[block] = parent
            parent = block_hash

    def note_hits(self, blocks: list[int]) -> None:
        """An admission found `blocks` and holds them."""
        if self._by_hits:
            for block in blocks:
                num_hits, cached_at = self._rank[block]
                self._rank[block] = num_hits + 1, cached_at

    def is_queued(self, block: int) -> bool:
        return block in self._hash

    def count_queued(self, blocks: list[int]) -> int:
        return sum(block in self._hash for block in blocks)

    def take_each(self, counts: list[int]) -> list[list[int]]:
        return [self.take(count) for count in counts]

    def hold(self, blocks: list[int]) -> None:
        held = []
        for block in blocks:
            if block in self._hash:
                self._remove(block)
                self._num_free -= 1
            else:
                held.append(block)
        super().hold(held)

    def parents(self) -> list[int]:
        """The hashes of the blocks before the free cached ones."""
        return [parent for block in self._hash if (parent := self._parent[block]) is not None]

    def _enqueue(self, table: list[int], hashes: BlockHashes | None, start: int, end: int) -> None:
        assert hashes is not None, "nothing is in the queue, so what nobody can find is free at once"
        blocks = table[start:end]
        for block, block_hash in zip(blocks, hashes.part(start, end), strict=True):
            self._hash[block] = block_hash
            self._with_hash.setdefault(block_hash, []).append(block)
            if (parent := self._parent[block]) is not None:
                self._num_followers[parent] += 1
        for block in blocks:
            self._offer(block)

    def _dequeue(self, count: int) -> list[int]:
        """Take `count` cached blocks, or all there are."""
        blocks: list[int] = []
        hashes: list[int] = []
        while len(blocks) < count and self._hash:
            rank, block = heapq.heappop(self._heap)
            if self._is_last(block) and self._rank[block] == rank:
                blocks.append(block)
                hashes.append(self._hash[block])
                self._remove(block)
        # Of a sequence, the tail comes last, as in its block table.
        self._evict(blocks[::-1], BlockHashes(hashes[::-1]), 0, len(blocks))
        return blocks

    def _is_last(self, block: int) -> bool:
        """Whether a block is free and cached, and no such block follows it."""
        block_hash = self._hash.get(block)
        return block_hash is not None and not self._num_followers[block_hash]

    def _offer(self, block: int) -> None:
        """Let a block go when its turn comes, if none follows it."""
        if not self._is_last(block):
            return
        if len(self._heap) > 2 * self.num_blocks:
            self._heap = [(self._rank[each], each) for each in self._hash if self._is_last(each)]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (self._rank[block], block))

    def _remove(self, block: int) -> None:
        """A block is not free, or not cached, any more."""
        block_hash, parent = self._hash.pop(block), self._parent[block]
        same = self._with_hash[block_hash]
        same.remove(block)
        if not same:
            del self._with_hash[block_hash]
        if parent is None:
            return
        self._num_followers[parent] -= 1
        if not self._num_followers[parent]:
            del self._num_followers[parent]
            for before in self._with_hash.get(parent, ()):
                self._offer(before)

    def _queued_hashes(self) -> dict[int, int | None]:
        assert Counter(self.parents()) == self._num_followers, "the blocks that follow others are miscounted"
        assert {(h, b) for h, blocks in self._with_hash.items() for b in blocks} == {
            (h, b) for b, h in self._hash.items()
        }, "a free block is not known by its hash"
        offered = {block for rank, block in self._heap if self._rank[block] == rank}
        assert {block for block in self._hash if self._is_last(block)} <= offered, "a cached block can never go"
        return dict(self._hash)


def make_pool(num_blocks: int, eviction: Eviction, evict: Evict, cached_size: float = 1.0) -> Pool:
    """A pool of `num_blocks` blocks; `evict` is told of cached blocks that are taken. Pools that rank their blocks take
    no account of `cached_size`."""
    if eviction in ("fifo", "lfu"):
        return RankedPool(num_blocks, by_hits=eviction == "lfu", evict=evict)
    return BlockPool(num_blocks, has_one_queue=eviction == "lru", evict=evict, cached_size=cached_size)
