"""The prefix cache behind the device: blocks that leave the device's cache go to the tiers, and hits come back.

      device's index ──evicted──▶ host ──evicted──▶ disk ──evicted──▶ lost
             ▲─────────── hit ──────┘────── hit ──────┘
             └─computed─▶ store that servers share (`shared_store.py`), if there is one; hits as from the others

A block is copied down when it is evicted, not before (write back). A hit copies it to the device, where it joins the
prefix index, and leaves it in its tier: when the device evicts it again, nothing is copied. A block that is in the
first tier already is only noted as used.

A hit is *coming* until its transfer is done. The sequence that asked for it is parked so long. Others find the block in
the device's index: they share it and are parked too.
"""

from __future__ import annotations

from collections import Counter, abc
from itertools import takewhile, zip_longest
from typing import NamedTuple

from engine.core.block_hashes import BlockHashes
from engine.core.kv.pool import Pool
from engine.core.kv.prefix_index import Content, PrefixIndex
from engine.core.kv.prefix_match import Hit, PrefixMatch
from engine.core.kv.tiers.shared_store import SharedStore, StoreSight
from engine.core.kv.tiers.tier import DEVICE, Tier, Transfer
from engine.core.sequence import Sequence


class _Load(NamedTuple):
    """What a parked sequence brings to the device."""

    hits: abc.Sequence[Hit]
    targets: list[int]


class Offload:
    """What `tiers`, nearest to the device first, hold of the prefix cache.

    Args:
        moves: where the tiers put their transfers.
        overlaps: hits come back while others compute, and who needs them is parked; else the step waits for them.

    Attributes:
        index: the device's.
        moves: transfers that make room, in the order they must run in, until a plan takes them out.
        sight: of the store that this server shares with others; None without one.
    """

    def __init__(self, tiers: abc.Sequence[Tier], moves: list[Transfer], *, overlaps: bool) -> None:
        self.tiers: list[Tier | StoreSight] = [*tiers]
        self.moves = moves
        self.index = PrefixIndex()
        self._overlaps = overlaps
        self._loads: dict[Sequence, _Load] = {}
        self._coming: set[int] = set()  # blocks of the device
        self.sight: StoreSight | None = None
        self._computed: dict[int, tuple[int, Content | None]] = {}  # blocks of the planned step, with the store only

    def share(self, store: SharedStore) -> None:
        """Keep what is computed from now on in `store`, too."""
        self.sight = StoreSight(store, self.moves)
        self.tiers.append(self.sight)

    def settle(self, now: int = 0) -> None:
        """The planned step has run, or runs before the next one, which is planned at the time `now`: what it computed
        and copied is there."""
        self.index.settle()
        if not self.moves:
            for tier in self.tiers:
                tier.settle()
        if self.sight is not None:
            self.sight.now = now
            for block, (block_hash, content) in reversed(self._computed.items()):  # a prompt's head is evicted last
                self.sight.store(block_hash, content, DEVICE, block)
            self._computed.clear()

    def note_computed(self, blocks: list[int], hashes: list[int], contents: abc.Iterable[Content]) -> None:
        """For the store: the step being planned computes what is in `blocks`, but for those that transfers fill."""
        known = zip_longest(hashes, contents)
        self._computed.update(
            (block, found) for block, found in zip(blocks, known, strict=True) if block not in self._coming
        )

    # -- down -----------------------------------------------------------------------------------------------------

    def remove(self, table: list[int], hashes: BlockHashes, start: int, end: int) -> None:
        """The device's pool hands out `table[start:end]`, found by the hashes at these places: their content goes to
        the first tier.

        The tail of a sequence goes before its head, so that it is evicted first there too.
        """
        index, first, blocks = self.index, self.tiers[0], table[start:end]
        if self._computed:
            for block in blocks:
                self._computed.pop(block, None)
        contents = [*map(index.content_of, blocks)]
        index.remove(table, hashes, start, end)
        found = zip(blocks, hashes.part(start, end), contents, strict=True)
        for block, block_hash, content in reversed([*found]):
            if block_hash not in index:  # else another block of the device has the same content
                first.store(block_hash, content, DEVICE, block)

    # -- up -------------------------------------------------------------------------------------------------------

    def continue_match(
        self,
        match: PrefixMatch,
        hashes: abc.Iterable[int],
        contents: abc.Iterable[Content | None],
        block_size: int,
    ) -> PrefixMatch:
        """`match` with the hits that follow it; `hashes` and `contents` are those of the blocks after `match.blocks`.

        Each block is found in the nearest tier that has it.
        """
        hits = []
        for block_hash, content in zip(hashes, contents, strict=False):
            tier = next((tier for tier in self.tiers if tier.holds(block_hash, content)), None)
            if tier is None:
                break
            hits.append(Hit(tier, block_hash))
        if not hits:
            return match
        return match._replace(num_cached_tokens=match.num_cached_tokens + len(hits) * block_size, hits=hits)

    def num_held(self, hashes: abc.Iterable[int]) -> int:
        """How many blocks of the longest prefix of `hashes` that is in the tiers."""
        return sum(1 for _ in takewhile(lambda each: any(each in tier for tier in self.tiers), hashes))

    def drop_unusable(self, match: PrefixMatch, pool: Pool, block_size: int) -> PrefixMatch:
        """`match` without its last block if that is coming and a token of it must be computed."""
        blocks, num_held = match.blocks, match.num_kept + len(match.blocks)
        if not blocks or blocks[-1] not in self._coming or match.num_cached_tokens == num_held * block_size:
            return match
        blocks = blocks[:-1]
        return PrefixMatch(blocks, (num_held - 1) * block_size, pool.count_queued(blocks), False, match.num_kept)

    def must_wait(self, match: PrefixMatch) -> bool:
        """Whether a sequence with this match is parked until transfers are done."""
        return bool(match.hits and self._overlaps) or not self._coming.isdisjoint(match.blocks)

    def load(self, sequence: Sequence, hits: abc.Sequence[Hit], pool: Pool) -> list[Transfer]:
        """Append blocks to the table of `sequence` into which `hits` are copied; there must be free ones."""
        for hit in reversed(hits):
            hit.tier.refresh(hit.block_hash)
            hit.tier.begin_read(hit.block_hash, is_lasting=self._overlaps)  # before `take`, which may evict there
        targets = pool.take(len(hits))
        sequence.block_table = sequence.block_table + targets
        if self._overlaps:
            self._loads[sequence] = _Load(hits, targets)
            self._coming.update(targets)
        return [
            Transfer(hit.tier.name, hit.tier.block_of(hit.block_hash), DEVICE, target)
            for hit, target in zip(hits, targets, strict=True)
        ]

    def end_load(self, sequence: Sequence) -> None:
        """The transfers that `sequence` waited for, if any, are done."""
        load = self._loads.pop(sequence, None)
        if load is not None:
            self._coming.difference_update(load.targets)
            for hit in load.hits:
                hit.tier.end_read(hit.block_hash)

    def check_integrity(self, parked: abc.Collection[Sequence], held: dict[str, list[int]]) -> None:
        """Prove the invariants of the tiers; raises AssertionError.

        Args:
            parked: the sequences that wait for transfers.
            held: by tier, the blocks that swapped-out sequences hold.
        """
        assert self._loads.keys() <= set(parked), "a sequence that waits for nothing has blocks coming"
        targets = [block for load in self._loads.values() for block in load.targets]
        assert set(targets) == self._coming and len(targets) == len(self._coming), "coming blocks are miscounted"
        readers = Counter((hit.tier.name, hit.block_hash) for load in self._loads.values() for hit in load.hits)
        for tier in self.tiers:
            hashes = [each for name, each in readers.elements() if name == tier.name]
            tier.check_integrity(held.get(tier.name, []), hashes)
        for sequence, load in self._loads.items():
            assert set(load.targets) <= set(sequence.block_table), "a coming block is not held"
