"""Proof that pool, prefix index and block tables agree, for tests."""

from __future__ import annotations

from collections import Counter

from engine.core.kv.eviction import RankedPool
from engine.core.kv.pool import Pool
from engine.core.kv.prefix_index import PrefixIndex
from engine.core.sequence import Sequence


def check_blocks(pool: Pool, index: PrefixIndex, block_size: int, sequences: list[Sequence]) -> None:
    """Prove the invariants, given all sequences that hold blocks of the device.

    Raises:
        AssertionError: a block is lost, held twice without a count, free while referenced, or wrongly indexed.
    """
    references = Counter(block for sequence in sequences for block in sequence.block_table)
    hash_of = pool.check_integrity(references)
    assert all(len(set(s.block_table)) == len(s.block_table) for s in sequences), "a block twice in one table"
    registered: set[tuple[int, int]] = set()
    for sequence in sequences:
        hashes = (sequence.block_hashes or [])[: sequence.num_registered_blocks]
        registered.update(zip(sequence.block_table, hashes, strict=False))
        index.check_registered(hashes)
    hash_of.update(registered)
    assert registered <= hash_of.items(), "two holders disagree on a block's content"
    for sequence in sequences:
        private = sequence.block_table[sequence.num_registered_blocks :]
        assert hash_of.keys().isdisjoint(private), "a private block is findable"
    index.check_integrity(hash_of, block_size)
    if isinstance(pool, RankedPool):
        assert {*pool.parents()} <= {*hash_of.values()}, "a cached block outlives its prefix"
