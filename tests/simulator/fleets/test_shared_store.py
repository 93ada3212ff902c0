"""A store of KV blocks that servers share: what it holds is what was computed, and others find it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.core.kv.tiers.shared_store import STORE, SharedStore
from engine.core.kv.tiers.tier import DEVICE
from engine.core.plan import StepPlan
from engine.core.routing.random import DrawOptions, Random
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions
from engine.core.sequence import Sequence
from harness import run
from harness.workload.content import request_factory
from simulator.copies.tiers import StoreTier, Tiers
from simulator.copies.transfers import StoreLink, TierLinks
from simulator.fleets.fleet import Fleet
from simulator.replica import Replica
from simulator.servers import stores_of
from tests.selection import examples
from tests.simulator.fleets.builders import Memory
from tests.simulator.replicas import FlatCost
from tests.simulator.workloads import Case, cases, make_arrivals, make_trace

Content = list[object]
BLOCK_BYTES = 1000


class TieredMemory(Memory):
    """That of a server with tiers, of which `shared` holds what all servers have in the store, by block."""

    def __init__(self, block_size: int, shared: dict[int, Content]) -> None:
        super().__init__(block_size)
        self.tiers: dict[str, dict[int, Content]] = {STORE: shared}
        self.coming: dict[int, tuple[str, int, Content]] = {}  # by block of the device
        self.num_from_store = 0

    def _block(self, block: int) -> Content:
        return [self.slots.get((block, offset)) for offset in range(self.block_size)]

    def _fill(self, block: int, content: Content) -> None:
        self.slots.update({(block, offset): slot for offset, slot in enumerate(content)})

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None:
        parked = {block for sequence in plan.parked for block in sequence.block_table}
        for source_tier, source, target_tier, target in plan.transfers:
            self.num_from_store += source_tier == STORE
            content = self._block(source) if source_tier == DEVICE else self.tiers[source_tier][source]
            if target_tier != DEVICE:
                assert None not in content, "a block is stored that nobody has computed"
                self.tiers.setdefault(target_tier, {})[target] = content
            elif source_tier != DEVICE and target in parked:
                self.coming[target] = source_tier, source, content
                self._fill(target, ["coming"] * self.block_size)
            else:
                self._fill(target, content)

    def land(self, sequence: Sequence) -> None:
        for block in sequence.block_table:
            if block in self.coming:
                tier, source, content = self.coming.pop(block)
                assert self.tiers[tier][source] == content, "a block was overwritten while it was read"
                self._fill(block, content)


class CheckedLinks(TierLinks):
    memory: TieredMemory

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        ready = super().pop_ready(until_ns)
        for sequence in ready:
            self.memory.land(sequence)
        return ready


def serve(case: Case, num_blocks: int, bytes_per_s: float) -> list[TieredMemory]:
    """Simulate the servers of a case with one store, in which everything that is read is what was written."""
    trace, store, shared = make_trace(case), SharedStore(num_blocks), dict[int, Content]()
    replicas, memories, sights = [], [], []
    for _ in range(case.num_replicas):
        scheduler, memory = case.make_scheduler(trace), TieredMemory(case.block_size, shared)
        assert scheduler.blocks.offload is not None
        scheduler.blocks.offload.share(store)
        links = CheckedLinks(BLOCK_BYTES, 1e9, None, StoreLink(store, BLOCK_BYTES, bytes_per_s, 1000))
        links.memory = memory
        replicas.append(Replica(scheduler, FlatCost(10_000), memory, compress=False, transfers=links))
        memories.append(memory)
        assert scheduler.blocks.offload.sight is not None
        sights.append(scheduler.blocks.offload.sight)
    rule = Random(DrawOptions(case.seed)) if case.num_replicas > 1 else None
    Fleet(make_arrivals(case, trace), request_factory(trace, case.block_size), replicas, rule).run()
    store.check_integrity(sights)
    for replica, sight in zip(replicas, sights, strict=True):
        replica.scheduler.check_integrity()
        assert replica.scheduler.blocks.num_used_blocks() == 0 and not replica.scheduler.unfinished
        replica.scheduler.blocks.pop_moves()
        sight.settle()
        assert not sight.busy, "a block is held for ever"
    finished = [row for memory in memories for row in memory.finished]
    assert sorted(finished) == list(range(len(trace.table)))
    return memories


STORE_ONLY = OffloadOptions(num_store_blocks=1)


NAMED_ON_BOTH_SERVERS = Case(  # a preemption names content that nobody else knows
    options=SchedulerOptions(policy="admission_order", victim="spare_last"), block_size=1, extra_blocks=1,
    max_num_seqs=3, max_num_batched_tokens=16, arrivals="burst", contents="hash_ids", max_lookahead_steps=1, seed=0,
    num_replicas=2, offload=OffloadOptions(num_store_blocks=1, overlap=False),
)  # fmt: skip


@examples(12)
@given(
    cases(
        extra_blocks=st.sampled_from([1, 5, 1000]),
        contents=st.sampled_from(["hash_ids", "sessions"]),
        num_replicas=st.sampled_from([1, 2, 3]),
        num_host_blocks=st.sampled_from([0, 7, 1000]),
        offload=st.builds(OffloadOptions, num_store_blocks=st.just(1), overlap=st.booleans()),
    ),
    st.sampled_from([3, 40, 10_000]),
    st.sampled_from([1e6, 1e9, 1e12]),
)
@example(NAMED_ON_BOTH_SERVERS, 10_000, 1e9)
def test_nothing_is_read_that_was_not_written(case: Case, num_blocks: int, bytes_per_s: float) -> None:
    memories = serve(case, num_blocks, bytes_per_s)
    assert sum(memory.num_reads for memory in memories) > 0


@pytest.mark.parametrize("is_async", [False, True])
def test_servers_find_what_others_have_computed(is_async: bool) -> None:
    case = Case(
        options=SchedulerOptions(async_scheduling=is_async), block_size=4, extra_blocks=1000, max_num_seqs=4,
        max_num_batched_tokens=64, arrivals="open", contents="hash_ids", max_lookahead_steps=1, seed=3, num_replicas=2,
        offload=STORE_ONLY,
    )  # fmt: skip
    assert all(memory.num_from_store for memory in serve(case, 10_000, 1e12))
    late = serve(case, 10_000, 1e-3)  # what is on its way is not found
    assert not any(memory.num_from_store for memory in late)
    alone = serve(replace(case, num_replicas=1), 10_000, 1e12)
    assert not alone[0].num_from_store, "the device has it all"


def test_a_load_takes_the_time_of_its_bytes_and_the_latency_of_the_network() -> None:
    """Two servers in turn get one prompt of 4,096 tokens, far apart: the second loads all blocks but the last."""
    bandwidth, latency_s, num_blocks = 10e9, 0.002, 255
    result = run(
        "model=qwen3-8b", "cost=roofline", "replicas=2", "tiers=shared", "trace=shared_prefix", "trace.num_requests=2",
        "trace.num_prefixes=1", "trace.prefix_tokens=4080", "trace.suffix={low: 16, high: 16}", "arrival=constant",
        "arrival.rate=0.1", "trace.output={low: 4, high: 4}", f"network.bandwidth={bandwidth}",
        f"network.latency_s={latency_s}",
    )  # fmt: skip
    rows: Any = result.requests.itertuples()
    first, second = rows
    assert (first.server, second.server) == (0, 1)
    assert (first.num_store_cached_tokens, second.num_store_cached_tokens) == (0, num_blocks * 16)
    block_bytes = 16 * 36 * 2 * 8 * 128 * 2
    host_s = block_bytes / result.config.tiers.host.gb_per_s / 1e9  # the last block goes on from the host's buffers
    assert second.parked_time == pytest.approx(num_blocks * block_bytes / bandwidth + latency_s + host_s, rel=1e-6)
    assert second.ttft < first.ttft
    assert result.summary["store_hit_rate"] == pytest.approx(num_blocks * 16 / (2 * 4096))


def test_compressed_is_stepped() -> None:
    """Turns find on another server what the turn before them generated, which that server stored step by step."""
    base = ("replicas=2", "trace=sharegpt_multiturn", "arrival=sessions", "arrival.think_time=5", "tiers=shared",
            "trace.num_requests=12", "model=qwen3-8b", "cost=roofline", "seed=0")  # fmt: skip
    stepped, compressed = (run(*base, f"engine.compress={each}").requests for each in ("false", "true"))
    assert stepped.equals(compressed) and stepped["num_store_cached_tokens"].sum() > 1000


def test_servers_of_one_node_share_a_store_and_others_do_not() -> None:
    base = ("replicas=4", "trace=shared_prefix", "trace.num_prefixes=1", "trace.prefix_tokens=1600", "tiers=shared",
            "trace.num_requests=8", "arrival=constant", "arrival.rate=1", "model=qwen3-8b")  # fmt: skip
    hits = {}
    for servers in (1, 2, "null"):
        table = run(*base, f"tiers.store.servers={servers}").requests
        hits[servers] = [bool(each) for each in table["num_store_cached_tokens"]]
    assert hits[1] == [False] * 8
    assert hits[2] == [False, True, False, True] + [False] * 4
    assert hits["null"] == [False, True, True, True] + [False] * 4


def test_a_rule_may_count_the_store_with_a_weight() -> None:
    """One prompt, again and again: a server has it on its device, all have it in the store."""
    base = ("replicas=2", "trace=shared_prefix", "trace.num_prefixes=1", "trace.prefix_tokens=1600", "tiers=shared",
            "trace.num_requests=6", "arrival=constant", "arrival.rate=1", "model=qwen3-8b", "cost=roofline",
            "router=weighted_score", "router.options.precise=true", "router.options.queue=0",
            "router.options.kv_use=0")  # fmt: skip
    for host, num_servers in ((0.0, 1), (1.5, 2)):
        assert run(*base, f"router.options.host={host}").requests["server"].nunique() == num_servers


def test_a_store_of_any_size_is_made_at_once_and_once() -> None:
    tiers = Tiers(store=StoreTier(10**12, 1e9, num_servers=2))
    stores = stores_of([SimpleNamespace(tiers=tiers)] * 6)  # type: ignore[list-item]
    assert [stores.index(store) for store in stores] == [0, 0, 2, 2, 4, 4]
    (store,) = stores_of([SimpleNamespace(tiers=Tiers(store=StoreTier(1, 1e9, eviction="fifo")))])  # type: ignore[list-item]
    assert store is not None and not store.tier._refreshes
