"""A prefix cache that goes on in host memory and on a disk, over links of given speeds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.kv.tiers.tier import DEVICE, DISK, HOST, Transfer
from engine.core.plan import StepPlan
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions
from engine.core.sequence import Request, Sequence
from engine.core.work import StepWork
from harness.record.record import RecordedRun
from harness.workload.arrivals import OpenLoop
from harness.workload.trace import Trace, trace_table
from simulator.arrivals import NEVER
from simulator.copies.transfers import Link, TierLinks
from tests.selection import examples
from tests.simulator.replicas import FlatCost, assert_same, simulate, simulate_case
from tests.simulator.workloads import Case, cases

BLOCK_BYTES = 1000
OFFLOADS = st.builds(
    OffloadOptions,
    num_disk_blocks=st.sampled_from([0, 10, 1000]),
    overlap=st.booleans(),
    host_eviction=st.sampled_from(["lru", "fifo"]),
)


def links(rate: float) -> TierLinks:
    return TierLinks(BLOCK_BYTES, rate, (Link(BLOCK_BYTES, rate / 7), Link(BLOCK_BYTES, rate / 3)))


@examples(4)
@given(
    cases(
        extra_blocks=st.sampled_from([1, 5]),
        num_host_blocks=st.sampled_from([3, 20, 1000]),
        offload=OFFLOADS,
        num_replicas=st.sampled_from([1, 2]),
        contents=st.sampled_from(["hash_ids", "sessions"]),
    ),
    st.sampled_from((1e7, 1e9, 1e12)),  # 100 us, 1 us and 1 ns per block
)
def test_compressed_equals_stepped_with_offloaded_prefixes(case: Case, rate: float) -> None:
    runs = [simulate_case(case, compress=compress, make_transfers=lambda: links(rate)) for compress in (False, True)]
    for stepped, compressed in zip(*runs, strict=True):
        assert_same(stepped, compressed)


def returning(offload: OffloadOptions | None, rate: float = 1e9) -> RecordedRun:
    """Prompts of 64 tokens, in turn of ten kinds, of which the device keeps two and the host five."""
    scheduler = make_scheduler(
        SchedulerOptions(watermark=0), num_blocks=40, block_size=4, max_num_seqs=2, max_num_batched_tokens=64,
        num_host_blocks=80 if offload else 0, offload=offload,
    )  # fmt: skip
    kinds = np.arange(50) % 10
    columns = {
        "num_prompt_tokens": [64] * 50, "num_output_tokens": [4] * 50,
        "hash_ids": [100 * kind + np.arange(8) for kind in kinds],
    }  # fmt: skip
    trace = Trace("t", trace_table(columns), "made", 8)
    arrivals = OpenLoop(np.arange(50) * 1_000_000)
    make_transfers = (lambda: links(rate)) if offload else None
    (run,) = simulate(trace, arrivals, [scheduler], FlatCost(20_000), make_transfers=make_transfers)
    return run


def test_each_tier_adds_hits_until_all_that_comes_again_is_one() -> None:
    offloads = [None, OffloadOptions(), OffloadOptions(num_disk_blocks=500)]
    none, host, disk = (returning(each).requests["num_cached_tokens"].sum() for each in offloads)
    assert none == host == 0, "what the host keeps is gone before it comes again"
    assert disk == 40 * 60, "all but the last block of each prompt that was there before"


def test_a_slower_link_makes_first_tokens_later() -> None:
    for overlap in (True, False):
        offload = OffloadOptions(num_disk_blocks=500, overlap=overlap)
        means = [returning(offload, rate).requests["ttft"].mean() for rate in (1e12, 1e9, 1e8)]
        assert means[0] < means[1] < means[2]


def plan_with(transfers: list[Transfer], *parked: Sequence) -> StepPlan:
    work = StepWork((), 0, 0, 0)
    return StepPlan(0, [], (), 0, work, [], [], [*parked], [], [], transfers, [], 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def holding(*blocks: int) -> Sequence:
    (sequence,) = Request(0, 99, 1).sequences
    sequence.block_table = list(blocks)
    return sequence


def test_each_direction_of_each_link_is_a_queue() -> None:
    transfers = TierLinks(100, 1e9, (Link(100, 5e8), Link(100, 1e8)))  # 100, 200 and 1000 ns per block
    first, second, third = holding(1, 2, 7), holding(3), holding(2, 9)
    out = [Transfer(HOST, 5, DISK, 0), Transfer(DEVICE, 1, HOST, 5), Transfer(DEVICE, 2, HOST, 6)]
    loads = [Transfer(HOST, 0, DEVICE, 1), Transfer(HOST, 1, DEVICE, 2)]
    assert transfers.start(plan_with([*out, *loads], first), 0) == 200, "the step waits for what leaves the device"
    assert transfers.next_ns == 400, "what comes to it comes after that"
    assert transfers.start(plan_with([Transfer(HOST, 2, DEVICE, 3)], second), 250) == 0
    assert transfers.start(plan_with([], third), 260) == 0, "it waits for the block that comes for the first"
    assert transfers.pop_ready(399) == [] and transfers.pop_ready(400) == [first, third]
    assert transfers.next_ns == 500 and transfers.pop_ready(500) == [second] and transfers.next_ns == NEVER
    fourth = holding(4)
    assert transfers.start(plan_with([Transfer(DISK, 0, DEVICE, 4)], fourth), 600) == 0
    assert transfers.next_ns == 600 + 1000 + 100, "it is read, then sent on"
    assert transfers.start(plan_with([Transfer(HOST, 3, DEVICE, 8)]), 600) == 200, "for nobody who is parked"


def test_a_block_is_read_from_the_disk_when_it_is_written() -> None:
    transfers = TierLinks(100, 1e9, (Link(100, 1e8), Link(100, 1e8)))
    transfers.start(plan_with([Transfer(HOST, 5, DISK, 0)]), 0)
    transfers.start(plan_with([Transfer(DISK, 0, DEVICE, 4)], holding(4)), 10)
    assert transfers.next_ns == 1000 + 1000 + 100


def test_without_links_a_scheduler_with_tiers_is_refused() -> None:
    with pytest.raises(ValueError, match="link"):
        simulate(
            Trace("t", trace_table({"num_prompt_tokens": [1], "num_output_tokens": [1]}), "made"),
            OpenLoop(np.array([0])),
            [make_scheduler(
                SchedulerOptions(), num_blocks=10, block_size=4, max_num_seqs=2, max_num_batched_tokens=9,
                num_host_blocks=5, offload=OffloadOptions(),
            )],
        )  # fmt: skip
