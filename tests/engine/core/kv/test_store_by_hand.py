"""A store that servers share, block by block: what is in it from when on, what leaves it first, what comes to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from engine.core.block_hashes import BlockHashes
from engine.core.kv.block_pool import BlockPool
from engine.core.kv.offload import Offload
from engine.core.kv.prefix_match import NO_MATCH, Hit
from engine.core.kv.tiers.shared_store import STORE, SharedStore, StoreSight
from engine.core.kv.tiers.tier import DEVICE, HOST, Tier, Transfer
from engine.core.sequence import Request
from simulator.copies.transfers import StoreLink, TierLinks


def saved(store: SharedStore, block_hash: int, at: int | None = 0) -> Transfer:
    """A block that is copied to the store and is there from `at` on."""
    transfer = store.save(block_hash, None, DEVICE, 1)
    assert transfer is not None and store.save(block_hash, None, DEVICE, 1) is None, "it is on its way"
    store.tier.end_read(block_hash)
    if at is not None:
        store.land(transfer.target, at)
    return transfer


def test_a_block_is_there_from_the_time_on_when_its_copy_is() -> None:
    store = SharedStore(1)
    block = saved(store, 7, at=5).target
    assert [store.is_there(7, now) for now in (4, 5, 6)] == [False, True, True]
    assert saved(store, 8, at=None).target == block, "it takes the place of the other"
    assert not store.is_there(8, 100) and not store.is_there(7, 100)
    store.land(block, 9)
    assert [store.is_there(8, now) for now in (8, 9)] == [False, True]


def test_what_was_of_use_to_a_server_stays_longer_and_what_is_on_its_way_is_not_evicted() -> None:
    store = SharedStore(3)
    moves: list[Transfer] = []
    sight = StoreSight(store, moves)
    for block_hash in (1, 2, 3):
        saved(store, block_hash)
    sight.refresh(1)
    sight.store(4, None, DEVICE, 9)
    assert (
        moves == [Transfer(DEVICE, 9, STORE, 1)]
        and [each in sight for each in (1, 2, 3, 4)] == [True, False] + [True] * 2
    )
    sight.begin_read(1, is_lasting=True)
    sight.begin_read(3, is_lasting=False)
    sight.store(5, None, DEVICE, 9)
    assert len(moves) == 1 and 5 not in sight, "all blocks are busy"
    sight.settle()
    sight.store(5, None, DEVICE, 9)
    assert 3 not in sight and {1, 4, 5} <= {each for each in range(9) if each in sight}
    store.check_integrity([sight])


def test_computed_blocks_come_when_the_step_has_run_the_head_last_and_no_block_that_a_tier_fills() -> None:
    host = Tier(HOST, 2)
    host.store(50, None, DEVICE, 3)
    host.settle()
    store = SharedStore(4)
    offload = Offload([host], [], overlaps=True)
    offload.share(store)
    (sequence,) = Request(0, 64, 1).sequences
    pool = BlockPool(21, has_one_queue=False, evict=lambda *taken: None)
    pool.take(20)  # the next is block 20
    offload.load(sequence, [Hit(host, 50)], pool)
    offload.note_computed([10, 11, 20, 12], [1, 2, 50, 3], [])
    offload.index.add([12], BlockHashes([3]), 0, 1)
    offload.remove([12], BlockHashes([3]), 0, 1)  # handed out before the step has run
    assert 1 not in store.tier
    offload.settle(now=6)
    assert [each in store.tier for each in (1, 2, 3, 50)] == [True, True, False, False]
    assert offload.sight is not None and offload.sight.now == 6
    for numbers in ([13, 14], [15]):
        offload.settle()
        offload.moves.clear()
        offload.note_computed(numbers, numbers, [])
        offload.settle()
    assert 1 in store.tier and 2 not in store.tier, "the tail of a prompt goes first"


def test_what_is_saved_and_loaded_takes_the_link_and_the_latency() -> None:
    store = SharedStore(4)
    link = StoreLink(store, 1000, 1e9, 70)  # 1 us a block
    for block_hash in (1, 2):
        saved(store, block_hash, at=None)
    link.save([0, 1], 500)
    assert [store.is_there(1, now) for now in (1569, 1570)] == [False, True]
    assert [store.is_there(2, now) for now in (2569, 2570)] == [False, True]
    assert link.load(2, 100) == 2170


def test_what_a_nearer_memory_has_comes_from_there_without_the_latency_of_the_store() -> None:
    store, host = SharedStore(4), Tier(HOST, 2)
    for block_hash in (1, 2):
        saved(store, block_hash)
    host.store(1, None, DEVICE, 3)
    host.settle()
    offload = Offload([host], [], overlaps=True)
    offload.share(store)
    hits = offload.continue_match(NO_MATCH, [1, 2, 3], [None] * 3, 16).hits
    assert [(hit.tier.name, hit.block_hash) for hit in hits] == [(HOST, 1), (STORE, 2)]
    links = TierLinks(1000, 1e9, None, StoreLink(store, 1000, 1e9, 70))
    loads = [Transfer(HOST, 0, DEVICE, 5)], [Transfer(HOST, 0, DEVICE, 5), Transfer(STORE, 1, DEVICE, 6)]
    plans: list[Any] = [SimpleNamespace(transfers=each, parked=[]) for each in loads]
    assert [links.start(plan, 10_000 * at) for at, plan in enumerate(plans)] == [1000, 2070]  # a last block passes on
