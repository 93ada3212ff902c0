"""A memory that several servers share, such as that of LMCache or of Mooncake's store.

    server 0: device ──computed──▶ ┌───────┐ ◀──computed── server 1: device
                     ◀────hit───── │ store │ ─────hit────▶
                                   └───────┘

A block is copied there when it has been computed, not when it leaves the device (write through). Servers find it from
the time on when the copy is there; until then it is on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.core.kv.prefix_index import Content
from engine.core.kv.tiers.tier import Tier, TierEviction, Transfer

STORE = "store"


class SharedStore:
    """`num_blocks` blocks, each free or cached. It has no clock: `land` says from when on a block can be found."""

    def __init__(self, num_blocks: int, eviction: TierEviction = "lru") -> None:
        self._moves: list[Transfer] = []
        self.tier = Tier(STORE, num_blocks, eviction=eviction, moves=self._moves)
        self._there_at: dict[int, int] = {}  # by block; blocks that are on their way have no time

    def save(self, block_hash: int, content: Content | None, source_tier: str, source: int) -> Transfer | None:
        """The copy that brings a block here, which is busy until `Tier.end_read`; None where it is here, or on its way,
        or there is no room beside blocks that are busy."""
        self.tier.store(block_hash, content, source_tier, source)
        self.tier.settle()
        if not self._moves:
            return None
        transfer = self._moves.pop()
        self._there_at.pop(transfer.target, None)
        self.tier.begin_read(block_hash, is_lasting=True)
        return transfer

    def land(self, block: int, at: int) -> None:
        """What was saved to `block` is there from the time `at` on."""
        self._there_at[block] = at

    def is_there(self, block_hash: int, now: int) -> bool:
        if block_hash not in self.tier:
            return False
        at = self._there_at.get(self.tier.block_of(block_hash))
        return at is not None and at <= now

    def check_integrity(self, sights: Iterable[StoreSight]) -> None:
        """Prove that no block is lost, and none busy but for what `sights`, those of all servers, do with it; raises
        AssertionError."""
        self.tier.check_integrity([], [block_hash for sight in sights for block_hash in sight.busy])


class StoreSight:
    """What one server sees of a store, in the form of a tier; its transfers are put into `moves`.

    Attributes:
        now: when the plan is made that asks.
    """

    name = STORE

    def __init__(self, store: SharedStore, moves: list[Transfer]) -> None:
        self.now = 0
        self._store = store
        self._moves = moves
        self._settling: list[int] = []  # hashes of blocks that the plan being made writes or reads
        self._readers: Counter[int] = Counter()  # of hashes, by sequences that wait for the block's KV

    def __contains__(self, block_hash: int) -> bool:
        """Whether a block is there, or on its way."""
        return block_hash in self._store.tier

    def holds(self, block_hash: int, content: Content | None) -> bool:
        return self._store.is_there(block_hash, self.now) and self._store.tier.holds(block_hash, content)

    def store(self, block_hash: int, content: Content | None, source_tier: str, source: int) -> None:
        """Copy a block there, unless another server has."""
        if (transfer := self._store.save(block_hash, content, source_tier, source)) is not None:
            self._moves.append(transfer)
            self._settling.append(block_hash)

    def refresh(self, block_hash: int) -> None:
        self._store.tier.refresh(block_hash)

    def block_of(self, block_hash: int) -> int:
        return self._store.tier.block_of(block_hash)

    def begin_read(self, block_hash: int, *, is_lasting: bool) -> None:
        """As `Tier.begin_read`."""
        self._store.tier.begin_read(block_hash, is_lasting=True)
        if is_lasting:
            self._readers[block_hash] += 1
        else:
            self._settling.append(block_hash)

    def end_read(self, block_hash: int) -> None:
        self._store.tier.end_read(block_hash)
        self._readers[block_hash] -= 1

    def settle(self) -> None:
        """The plan that was made has run, or runs before the next one."""
        for block_hash in self._settling:
            self._store.tier.end_read(block_hash)
        self._settling.clear()

    @property
    def busy(self) -> list[int]:
        """Hashes of blocks that may not be evicted, each as often as this server reads or writes it."""
        return [*self._settling, *self._readers.elements()]

    def check_integrity(self, held: list[int], readers: Iterable[int] = ()) -> None:
        """As `Tier.check_integrity`; blocks are those of the store, which proves them for all servers."""
        assert not held, "a swapped-out sequence holds a block of the store"
        assert sorted(readers) == sorted(self._readers.elements()), "the readers of the store are miscounted"
