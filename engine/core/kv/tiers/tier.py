"""Places where KV blocks can be, and the moves between them."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import Literal, NamedTuple

from engine.core.kv.prefix_index import Content

DEVICE = "device"
HOST = "host"
DISK = "disk"

TierEviction = Literal["lru", "fifo"]


class Transfer(NamedTuple):
    """Copy all KV of block `source` of `source_tier` to block `target` of `target_tier`.

    The transfers of a plan run in their order, before the step writes anything.
    """

    source_tier: str
    source: int
    target_tier: str
    target: int

    @property
    def is_within_device(self) -> bool:
        return self.source_tier == self.target_tier == DEVICE


class CachedBlock(NamedTuple):
    """A block of a tier whose content can be found by its hash; `content` is None where tokens are only counted."""

    block: int
    content: Content | None


# From a tuple of all fields: what `_make` of these named tuples does, without a Python call for each of them.
make_transfer = partial(tuple.__new__, Transfer)
make_cached = partial(tuple.__new__, CachedBlock)


class Tier:
    """`num_blocks` blocks of a memory behind the device's: each free, held by a swapped-out sequence, or cached.

          free ──take──▶ held by a swapped-out sequence ──release──▶ free
          free ──store──▶ cached, found by hash ──evicted by `take` or `store`──▶ copied to the tier below, or lost

    Cached blocks give way to whatever comes. A cached block is busy, and is not evicted, while a transfer reads it, and
    from the plan whose transfers write it until the next plan is made.

    Args:
        below: the tier that evicted blocks go to; None where there is none.
        eviction: which cached block goes first: "lru" the one that was stored or found longest ago, "fifo" the one that
            was stored longest ago.
        moves: where transfers to the tier below are put; the chain of tiers shares one list.
    """

    def __init__(
        self,
        name: str,
        num_blocks: int,
        *,
        below: Tier | None = None,
        eviction: TierEviction = "lru",
        moves: list[Transfer] | None = None,
    ) -> None:
        self.name = name
        self.num_blocks = num_blocks
        self._below = below
        self._refreshes = eviction == "lru"
        self._moves = [] if moves is None else moves
        self._free: list[int] = []  # given back; those from `_num_used` on were never used
        self._num_used = 0
        self._cached: OrderedDict[int, CachedBlock] = OrderedDict()  # by hash; the first is evicted first
        self._readers: Counter[int] = Counter()  # of hashes, by sequences that wait for the block's KV
        self._settling: set[int] = set()  # hashes of blocks that the plan being made reads or writes
        self._num_busy = 0  # of readers and settling together

    # -- swapped-out sequences ------------------------------------------------------------------------------------

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `take` can hand out: free ones, and cached ones that are not busy."""
        return self._num_free + len(self._cached) - self._num_busy

    def take(self, count: int) -> list[int]:
        """Take `count` blocks, which must be free or cached and not busy."""
        assert 0 < count <= self.num_free_blocks
        while self._num_free < count:
            self._evict()
        return [self._take_free() for _ in range(count)]

    @property
    def _num_free(self) -> int:
        return len(self._free) + self.num_blocks - self._num_used

    def _take_free(self) -> int:
        if self._free:
            return self._free.pop()
        self._num_used += 1
        return self._num_used - 1

    def release(self, blocks: list[int]) -> None:
        self._free.extend(reversed(blocks))

    # -- cached blocks --------------------------------------------------------------------------------------------

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self._cached

    def holds(self, block_hash: int, content: Content | None) -> bool:
        """Whether a block with this hash is here, and its content is this one: a hash can collide."""
        cached = self._cached.get(block_hash)
        return cached is not None and cached.content == content

    def store(self, block_hash: int, content: Content | None, source_tier: str, source: int) -> None:
        """Copy a block that is leaving another tier to this one; it is dropped if all blocks here are busy or held."""
        cached = self._cached
        if block_hash in cached:
            self.refresh(block_hash)
            return
        if not self._free and self._num_used == self.num_blocks:
            if len(cached) == self._num_busy:
                return
            self._evict()
        block = self._take_free()
        cached[block_hash] = make_cached((block, content))
        self._settling.add(block_hash)
        self._num_busy += 1
        self._moves.append(make_transfer((source_tier, source, self.name, block)))

    def refresh(self, block_hash: int) -> None:
        """Note that a cached block was of use."""
        if self._refreshes:
            self._cached.move_to_end(block_hash)

    def block_of(self, block_hash: int) -> int:
        return self._cached[block_hash].block

    def begin_read(self, block_hash: int, *, is_lasting: bool) -> None:
        """A cached block is read: it is busy until `end_read`, or if not `is_lasting` until the next plan is made."""
        self._num_busy += block_hash not in self._readers and block_hash not in self._settling
        if is_lasting:
            self._readers[block_hash] += 1
        else:
            self._settling.add(block_hash)

    def end_read(self, block_hash: int) -> None:
        self._readers[block_hash] -= 1
        if not self._readers[block_hash]:
            del self._readers[block_hash]
            self._num_busy -= block_hash not in self._settling

    def settle(self) -> None:
        """The plan that was made has run, or runs before the next one."""
        self._settling.clear()
        self._num_busy = len(self._readers)

    def _evict(self) -> None:
        """Free the first cached block that is not busy; its content goes to the tier below."""
        readers, settling = self._readers, self._settling
        for block_hash in self._cached:
            if block_hash not in settling and block_hash not in readers:
                break
        block, content = self._cached.pop(block_hash)
        if self._below is not None:
            self._below.store(block_hash, content, self.name, block)
        self._free.append(block)

    def check_integrity(self, held: list[int], readers: Iterable[int] = ()) -> None:
        """Prove that no block is lost or held twice, and none busy without a reader.

        Args:
            held: the blocks that sequences hold.
            readers: the hashes of cached blocks that sequences wait for, each as often as one does.

        Raises:
            AssertionError: it is not so.
        """
        cached = [each.block for each in self._cached.values()]
        assert self._num_used <= self.num_blocks
        assert sorted([*self._free, *held, *cached]) == list(range(self._num_used)), "a block is lost or held twice"
        assert Counter(readers) == self._readers, "the readers of a tier are miscounted"
        busy = self._readers.keys() | self._settling
        assert busy <= self._cached.keys(), "a busy block was evicted"
        assert len(busy) == self._num_busy, "busy blocks are miscounted"
