"""The prefix index against one that keeps a list of blocks for every hash."""

from __future__ import annotations

import random

import pytest

from engine.core.block_hashes import BlockHashes, SpannedHashes
from engine.core.kv.prefix_index import PrefixIndex

Entry = tuple[int, int]  # a block and its hash


class PlainIndex:
    """All blocks by their hash; the first of equal ones is found."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[int]] = {}

    def find(self, hashes: list[int]) -> list[int]:
        found = []
        for block_hash in hashes:
            if not self.blocks.get(block_hash):
                break
            found.append(self.blocks[block_hash][0])
        return found

    def add(self, blocks: list[int], hashes: list[int]) -> None:
        for block, block_hash in zip(blocks, hashes, strict=True):
            self.blocks.setdefault(block_hash, []).append(block)

    def remove(self, blocks: list[int], hashes: list[int]) -> None:
        for block, block_hash in zip(blocks, hashes, strict=True):
            self.blocks[block_hash].remove(block)

    def hash_of(self) -> dict[int, int]:
        return {block: block_hash for block_hash, blocks in self.blocks.items() for block in blocks}


class Twin:
    """Both indexes, and the sequences that hold blocks: their hashes and the blocks of those that are registered.

    Blocks that nobody holds are evicted in the order of their release, or in any in which no block outlives its prefix.
    """

    def __init__(self, rng: random.Random, *, in_any_order: bool) -> None:
        self.rng = rng
        self.in_any_order = in_any_order
        self.depths: dict[int, int] = {}  # how many hashes come before each
        self.index, self.plain = PrefixIndex(), PlainIndex()
        self.index.shortest_run = 2
        self.sequences: list[tuple[list[int], list[int]]] = []
        self.num_holders: dict[int, int] = {}
        self.cached: list[Entry] = []  # blocks that nobody holds with their hashes, the next to go last
        self.num_blocks = 0
        self.stems = [[rng.getrandbits(60) for _ in range(30)] for _ in range(3)]

    def find(self, hashes: list[int], start: int = 0) -> list[int]:
        limit = self.rng.randint(0, len(hashes) - start + 2)
        found = self.index.find(BlockHashes(hashes), start, start + limit)
        assert found == self.plain.find(hashes[start:][:limit])
        assert (hashes[0] in self.index) == bool(self.plain.blocks.get(hashes[0]))
        return found

    def hold(self, blocks: list[int]) -> None:
        for block in blocks:
            self.num_holders[block] = self.num_holders.get(block, 0) + 1
        self.cached = [entry for entry in self.cached if not self.num_holders.get(entry[0])]

    def admit(self) -> None:
        num_shared = self.rng.randint(0, 30)
        hashes = self.rng.choice(self.stems)[:num_shared] + [self.rng.getrandbits(60) for _ in range(10)]
        self.depths |= {each: depth for depth, each in enumerate(hashes)}
        self.stems[self.rng.randrange(3)] = hashes + [self.rng.getrandbits(60) for _ in range(5)]
        blocks = self.find(hashes)
        self.hold(blocks)
        self.sequences.append((hashes, blocks))

    def compute(self, hashes: list[int], table: list[int]) -> None:
        """Register the next blocks of a sequence, which may be known already."""
        count = self.rng.randint(0, len(hashes) - len(table))
        if count:
            blocks, new = [*range(self.num_blocks, self.num_blocks + count)], hashes[len(table) :][:count]
            self.num_blocks += count
            self.index.add(blocks, BlockHashes(new), 0, count)
            self.plain.add(blocks, new)
            self.hold(blocks)
            table += blocks

    def release(self, hashes: list[int], table: list[int], num_kept: int = 0) -> None:
        """Drop the references to all blocks but the first `num_kept`."""
        self.index.enter(hashes[:num_kept])
        released = list(zip(table, hashes, strict=False))[num_kept:]
        for block, _ in released:
            self.num_holders[block] -= 1
        del table[num_kept:]
        freed = [entry for entry in released if not self.num_holders[entry[0]]]
        self.cached = freed + self.cached  # what lies here longest goes first, of each sequence the end
        if num_kept and num_kept < len(hashes):
            found = self.find(hashes, num_kept)
            self.hold(found)
            table += found

    def evict(self) -> None:
        if self.in_any_order:
            self.rng.shuffle(self.cached)
            self.cached.sort(key=lambda entry: self.depths[entry[1]])
        count = self.rng.randint(0, len(self.cached))
        taken = self.cached[len(self.cached) - count :]
        del self.cached[len(self.cached) - count :]
        while taken:  # a part at a time
            size = self.rng.randint(1, len(taken))
            blocks, hashes = [[entry[i] for entry in taken[-size:]] for i in range(2)]
            del taken[-size:]
            self.index.remove(blocks, BlockHashes(hashes), 0, size)
            self.plain.remove(blocks, hashes)

    def check(self) -> None:
        self.index.check_integrity(self.plain.hash_of(), 1)
        for hashes, table in self.sequences:
            self.index.check_registered(hashes[: len(table)])


@pytest.mark.parametrize("in_any_order", [False, True])
def test_the_index_finds_what_a_plain_one_finds_whatever_is_evicted(in_any_order: bool) -> None:
    for seed in range(60):
        twin = Twin(random.Random(seed), in_any_order=in_any_order)
        for _ in range(60):
            action = twin.rng.random()
            if action < 0.3:
                twin.admit()
            elif action < 0.7 and twin.sequences:
                twin.compute(*twin.rng.choice(twin.sequences))
            elif action < 0.75 and twin.sequences:
                hashes, table = twin.rng.choice(twin.sequences)
                twin.release(hashes, table, twin.rng.randint(0, len(table)))
            elif action < 0.9 and twin.sequences:
                twin.release(*twin.sequences.pop(twin.rng.randrange(len(twin.sequences))))
            else:
                twin.evict()
            twin.check()


def test_blocks_that_were_never_found_are_entered_under_one_hash() -> None:
    index = PrefixIndex()
    table, hashes = [*range(100)], SpannedHashes([1000], 100, 100)
    index.add(table, hashes, 0, 100)
    assert len(index._blocks) == 1
    index.remove(table, hashes, 60, 100)
    assert len(index._blocks) == 1
    assert index.find(hashes, 0, 100) == [*range(60)] and len(index._blocks) == 60
