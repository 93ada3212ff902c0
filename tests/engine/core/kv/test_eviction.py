"""Eviction by age and by hits, against a search of all cached blocks."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from engine.core.block_hashes import BlockHashes
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.block_pool import BlockPool
from engine.core.kv.eviction import Eviction
from engine.core.sequence import Sequence
from tests.engine.core.builders import bare_sequence


@dataclass(frozen=True)
class Cached:
    """A block that can be found."""

    own_hash: int
    parent: int | None
    num_hits: int
    cached_at: int


class Reference:
    """Follows a block manager and says, whenever a cached block is evicted, which one it should be."""

    def __init__(self, manager: BlockManager, eviction: Eviction) -> None:
        self.manager = manager
        self.eviction = eviction
        self.cached: dict[int, Cached] = {}
        self.num_evicted = self.time = 0
        self.held: list[Sequence] = []
        self.matched: list[int] = []  # by the last that was admitted
        remove = manager.index.remove

        def evict(table: list[int], hashes: BlockHashes, start: int, end: int) -> None:
            for block in reversed(table[start:end]):
                assert block == self._next(), "another block should go"
                del self.cached[block]
                self.num_evicted += 1
            remove(table, hashes, start, end)

        manager.pool._evict = evict  # type: ignore[attr-defined]

    def _next(self) -> int:
        held = {*self.matched, *(block for sequence in self.held for block in sequence.block_table)}
        free = {block: each for block, each in self.cached.items() if block not in held}
        parents = {each.parent for each in free.values()}
        ends = [block for block, each in free.items() if each.own_hash not in parents]
        by_hits = self.eviction == "lfu"
        return min(ends, key=lambda b: (free[b].num_hits if by_hits else 0, free[b].cached_at, b))

    def admit(self, sequence: Sequence) -> bool:
        match = self.manager.match(sequence)
        if self.manager.blocks_needed(sequence, match, sequence.num_tokens) > self.manager.num_free_blocks:
            return False
        for block in match.blocks:
            self.cached[block] = replace(self.cached[block], num_hits=self.cached[block].num_hits + 1)
        self.matched = match.blocks  # they are held before others are taken
        self.manager.admit(sequence, match, sequence.num_tokens)
        self.held.append(sequence)
        self.matched = []
        return True

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        start, hashes = sequence.num_registered_blocks, sequence.block_hashes or []
        self.manager.register(sequence, num_tokens)
        self.time += 1
        for i in range(start, sequence.num_registered_blocks):
            parent = hashes[i - 1] if i else None
            self.cached[sequence.block_table[i]] = Cached(hashes[i], parent, 0, self.time)

    def release(self, sequence: Sequence) -> None:
        self.held.remove(sequence)
        self.manager.release(sequence)


@pytest.mark.parametrize("eviction", ["fifo", "lfu"])
@pytest.mark.parametrize("seed", range(6))
def test_the_block_that_goes_is_the_one_that_a_search_finds(eviction: Eviction, seed: int) -> None:
    rng, size = random.Random(seed), 2
    manager = BlockManager(rng.choice([6, 12, 40]), size, eviction=eviction)
    reference = Reference(manager, eviction)
    for number in range(600):
        num_tokens = rng.randint(1, 12)
        stem, cut = rng.randrange(4), rng.randrange(4)  # prompts share stems up to a cut, and go on in a few ways
        tail = rng.randrange(3)
        own = 10_000 * stem + 100 * (10 * cut + tail)
        hashes = [10_000 * stem + i if i < cut else own + i for i in range(6)]
        sequence = bare_sequence(number, num_tokens, 5, block_hashes=hashes)
        if reference.admit(sequence):
            for cached in sorted(rng.randint(0, num_tokens) for _ in range(2)):
                reference.register(sequence, cached)
            manager.settle()
        elif reference.held:
            reference.release(rng.choice(reference.held))
        if reference.held and rng.random() < 0.6:
            reference.release(rng.choice(reference.held))
        manager.check_integrity(reference.held)
    assert reference.num_evicted > 30


def test_which_of_the_unhashed_blocks_of_a_release_goes_first() -> None:
    for tail_first in (False, True):
        pool = BlockPool(3, has_one_queue=False, evict=lambda *taken: None)
        pool.tail_first = tail_first
        table = pool.take(3)
        pool.release(table, BlockHashes([7]), 1)
        assert pool.take(1) == [table[-1 if tail_first else 1]]


def test_rules_differ_in_what_they_keep() -> None:
    """Three prompts are cached, the first is hit once and the second, later, not: each rule gives up another one."""
    kept = {}
    for eviction in ("unhashed_first", "fifo", "lfu"):
        manager = BlockManager(4, 1, eviction=eviction)
        prompts = {name: [10 * i + 1, 10 * i + 2] for i, name in enumerate("ab")}

        def serve(hashes: list[int], manager: BlockManager = manager) -> None:
            sequence = bare_sequence(0, len(hashes) + 1, 1, block_hashes=hashes)
            match = manager.match(sequence)
            manager.admit(sequence, match, len(hashes))
            manager.register(sequence, len(hashes))
            manager.settle()
            manager.release(sequence)

        serve(prompts["a"])
        serve(prompts["b"])
        serve(prompts["a"])
        serve(prompts["a"])
        serve(prompts["b"])
        serve([99])
        kept[eviction] = {name for name, hashes in prompts.items() if hashes[1] in manager.index}
    assert kept == {"unhashed_first": {"b"}, "fifo": {"b"}, "lfu": {"a"}}


@pytest.mark.parametrize("eviction", ["unhashed_first", "lru"])
@pytest.mark.parametrize("seed", range(4))
def test_cached_blocks_that_take_more_memory_are_fewer_and_the_oldest_go(eviction: Eviction, seed: int) -> None:
    """At any time they fit in what is free; and what was given back last is still there."""
    rng, cached_size = random.Random(seed), 2.5
    manager = BlockManager(40, 1, eviction=eviction, cached_size=cached_size)
    held: list[Sequence] = []
    for number in range(400):
        length = rng.randint(1, 8)
        sequence = bare_sequence(number, length, 1, block_hashes=[100 * rng.randrange(12) + i for i in range(length)])
        match = manager.match(sequence)
        if manager.blocks_needed(sequence, match, length) <= manager.num_free_blocks:
            manager.admit(sequence, match, length)
            manager.register(sequence, length)
            manager.settle()
            held.append(sequence)
        while held and rng.random() < 0.6:
            last = held.pop(rng.randrange(len(held)))
            blocks = len(last.block_table)
            manager.release(last)
            room = int((manager.num_free_blocks - blocks) / cached_size)
            assert last.block_hashes is not None
            assert manager.cached_prefix(last.block_hashes)[0] >= min(blocks - 1, room)
        manager.check_integrity(held)
    for sequence in held:
        manager.release(sequence)
    manager.check_integrity([])
    assert sum(manager.pool.is_queued(block) for block in range(40)) >= 40 // cached_size


def test_who_finds_a_prefix_or_copies_it_leaves_no_pages_of_layers_with_a_window() -> None:
    """Three blocks that were computed leave three pages. Found again they have theirs in the queue still, where the
    oldest go first; copied ones have none."""
    manager = BlockManager(10, 1, cached_size=2.0)
    hashes = {name: [100 * ord(name) + i for i in range(3)] for name in "abcd"}

    def serve(number: int, name: str, *, is_copied: bool = False) -> int:
        """The blocks that were found of a prefix of three."""
        sequence = bare_sequence(number, 4, 1, block_hashes=[*hashes[name], number])
        match = manager.match(sequence)
        manager.admit(sequence, match, 4)
        (manager.register_loaded if is_copied else manager.register)(sequence, 3)
        manager.release(sequence)
        manager.check_integrity([])
        return len(match.blocks)

    assert [serve(1, "a"), serve(2, "a"), serve(3, "b"), serve(4, "a"), serve(5, "b")] == [0, 3, 0, 3, 3]
    assert serve(6, "c", is_copied=True) == 0
    assert [manager.cached_prefix(each)[0] for each in hashes.values()] == [3, 3, 3, 0]
    assert serve(7, "d") == 0  # in blocks that others were in, whose pages went before
    assert sum(manager.cached_prefix(each)[0] for each in hashes.values()) == 10 - 3
