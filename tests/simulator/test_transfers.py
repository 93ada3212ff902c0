"""KV blocks that move to a host tier and back over a link of a given speed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.kv.tiers.tier import DEVICE, HOST
from engine.core.plan import StepPlan
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request, Sequence
from harness.record.record import RecordedRun
from harness.workload.arrivals import OpenLoop
from simulator.acceptance import Speculation
from simulator.copies.transfers import TierLinks
from simulator.decode_run import Durations
from tests.selection import examples
from tests.simulator.replicas import FlatCost, PlanLog, assert_same, simulate, simulate_case
from tests.simulator.workloads import Case, cases, simple_trace

BLOCK_BYTES = 1000
NUM_HOST_BLOCKS = st.sampled_from([3, 20, 1000])
RATES = (1e7, 1e9, 1e12)  # 100 us, 1 us and 1 ns per block


@examples(10)
@given(
    cases(extra_blocks=st.sampled_from([1, 5]), num_host_blocks=NUM_HOST_BLOCKS, num_replicas=st.sampled_from([1, 2])),
    st.sampled_from(RATES),
    st.booleans(),
)
def test_compressed_equals_stepped_with_swaps(case: Case, rate: float, is_auto: bool) -> None:
    mode: dict[str, Any] = {"preemption": "auto", "recompute_token_us": 10.0} if is_auto else {"preemption": "swap"}
    case = replace(case, options=replace(case.options, **mode))
    runs = [
        simulate_case(case, compress=compress, make_transfers=lambda: TierLinks(BLOCK_BYTES, rate))
        for compress in (False, True)
    ]
    for stepped, compressed in zip(*runs, strict=True):
        assert_same(stepped, compressed)
    tokens = sum(run.requests["num_output_tokens"].sum() for run in runs[0])
    assert tokens == runs[0][0].requests["num_requested_tokens"].sum()


def starved(num_host_blocks: int, rate: float = 1e9, *, log: PlanLog | None = None) -> RecordedRun:
    """8 requests of 120 tokens in a pool of 40 blocks of 4, which holds one of them and a part of a second."""
    scheduler = make_scheduler(
        SchedulerOptions(watermark=0, preemption="swap" if num_host_blocks else "recompute"),
        num_blocks=40,
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=100,
        num_host_blocks=num_host_blocks,
    )
    arrivals = OpenLoop(np.arange(8) * 5_000)
    link = TierLinks(BLOCK_BYTES, rate)
    (run,) = simulate(
        simple_trace([20] * 8, [100] * 8), arrivals, [scheduler], FlatCost(20_000),
        observer=log, make_transfers=lambda: link,
    )  # fmt: skip
    assert (run.requests["num_output_tokens"] == 100).all()
    return run


def test_a_starved_pool_recomputes_fewer_tokens_the_more_it_can_swap() -> None:
    recomputed = [starved(n).requests["num_recomputed_tokens"].sum() for n in (0, 25, 1000)]
    assert recomputed[0] > recomputed[1] > recomputed[2] == 0


def test_a_slower_link_makes_no_latency_shorter() -> None:
    latencies = [starved(1000, rate).requests["e2el"] for rate in (1e12, 1e8, 1e7, 1e6)]
    for fast, slow in zip(latencies, latencies[1:], strict=False):
        assert fast.mean() < slow.mean() and fast.max() < slow.max()
    assert starved(1000).requests["num_preemptions"].sum() > 0


class SwapLog(PlanLog):
    """Also keeps for each plan whether it computes anything, and how many blocks leave the device and come back.

    A sequence that comes back must not decode before its blocks can be there, at 1 us per block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moves: list[tuple[bool, int, int]] = []
        self.back_at: dict[Sequence, int] = {}

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Durations | int) -> None:
        super().on_step(plan, start_ns, durations_ns)
        num_out = sum((t.source_tier, t.target_tier) == (DEVICE, HOST) for t in plan.transfers)
        num_in = sum((t.source_tier, t.target_tier) == (HOST, DEVICE) for t in plan.transfers)
        if plan.parked:
            self.back_at[plan.parked[0]] = start_ns + (num_out + len(plan.parked[0].host_blocks or ())) * 1000
        for sequence in plan.decodes:
            assert start_ns >= self.back_at.pop(sequence, 0)
        self.moves.append((bool(plan.num_decodes or plan.prefills), num_out, num_in))


def test_a_step_waits_for_what_leaves_the_device_and_runs_beside_what_comes_back() -> None:
    log = SwapLog()
    starved(1000, 1e9, log=log)  # 1 us per block
    for (_, durations), (computes, num_out, _) in zip(log.plans, log.moves, strict=True):
        assert durations[0] == 20_000 * computes + 1000 * num_out
    assert not log.back_at
    num_out, num_in = (sum(move[i] for move in log.moves) for i in (1, 2))
    assert num_out == num_in > 0


def test_without_a_link_a_scheduler_with_a_host_tier_is_refused() -> None:
    scheduler = make_scheduler(
        SchedulerOptions(), num_blocks=10, block_size=4, max_num_seqs=2, max_num_batched_tokens=9, num_host_blocks=5
    )
    with pytest.raises(ValueError, match="host tier"):
        simulate(simple_trace([1], [1]), OpenLoop(np.array([0])), [scheduler])


@pytest.mark.parametrize(("num_blocks", "lengths"), [(10, (14, 17)), (12, (6, 11)), (13, (28, 5)), (14, (14, 17))])
def test_two_that_fill_the_pool_do_not_swap_each_other_out_for_ever(num_blocks: int, lengths: tuple[int, int]) -> None:
    """Who comes back waits for room for the drafts of its first step, too; a block takes two steps to come back."""
    scheduler = make_scheduler(
        SchedulerOptions(policy="mixed", preemption="swap", watermark=0.0), num_blocks=num_blocks, block_size=4,
        max_num_seqs=4, max_num_batched_tokens=64, num_host_blocks=64, transfer_block_us=1.0,
        make_decodes=partial(Speculation((0.6, 0.4, 0.3), seed=0).make_decodes, plans_ahead=False),
    )  # fmt: skip
    for number, length in enumerate(lengths):
        scheduler.add(Request(number, length, 24))
    coming: list[tuple[int, Sequence]] = []
    for now in range(1000):
        for _, sequence in (each for each in coming if each[0] <= now):
            scheduler.ready(sequence)
        coming = [each for each in coming if each[0] > now]
        if (plan := scheduler.schedule(now)) is not None:
            coming += [(now + 2 * len(sequence.block_table), sequence) for sequence in plan.parked]
            scheduler.commit(plan, now)
    assert not scheduler.unfinished
