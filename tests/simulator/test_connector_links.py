"""Servers that store on the host what they compute, as vLLM does, over links of given speeds."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from engine.core.decodes.uniform import uniform_decodes
from engine.core.offloading.rules import OffloadingRules
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions
from engine.core.sequence import Request
from harness.record.record import RecordedRun
from harness.workload.arrivals import OpenLoop
from harness.workload.trace import Trace, trace_table
from simulator.acceptance import Speculation
from simulator.copies.connector_links import ConnectorLinks
from simulator.versions.vllm_versions import vllm_version
from tests.simulator.replicas import FlatCost, assert_same, simulate

SPECULATION = Speculation((0.6, 0.4), seed=0)


def returning(
    version: str | None,
    rate: float = 1e9,
    *,
    compress: bool = True,
    plans_ahead: bool = False,
    num_blocks: int = 40,
    drafts: bool = False,
    gap_ns: int = 300_000,
) -> RecordedRun:
    """Prompts of 64 tokens, in turn of ten kinds, of which the device keeps two; without a version there is no host."""
    offload = OffloadOptions(rules=OffloadingRules(**vllm_version(version).offloading)) if version else None
    options = SchedulerOptions(
        policy="admission_order", watermark=0, allocation="chunk", full_hit="recompute_block",
        async_scheduling=plans_ahead,
    )  # fmt: skip
    scheduler = make_scheduler(
        options, num_blocks=num_blocks, block_size=4, max_num_seqs=4, max_num_batched_tokens=64,
        num_host_blocks=400 if offload else 0, offload=offload,
        make_decodes=partial(SPECULATION.make_decodes, plans_ahead=plans_ahead) if drafts else uniform_decodes,
    )  # fmt: skip
    columns = {
        "num_prompt_tokens": [64] * 30, "num_output_tokens": [12] * 30,
        "hash_ids": [100 * kind + np.arange(8) for kind in np.arange(30) % 10],
    }  # fmt: skip
    trace = Trace("t", trace_table(columns), "made", 8)
    arrivals = OpenLoop(np.arange(30) * gap_ns)
    (run,) = simulate(trace, arrivals, [scheduler], FlatCost(20_000), host_bytes_per_s=rate, compress=compress)
    scheduler.check_integrity()
    assert scheduler.blocks.num_used_blocks() == 0, "all that was held is free"
    return run


@pytest.mark.parametrize("version", ("0.19", "0.27", "0.33"))
def test_all_that_comes_again_is_a_hit(version: str) -> None:
    assert returning(None).requests["num_cached_tokens"].sum() == 0
    found = returning(version)
    assert found.requests["num_cached_tokens"].sum() >= 20 * 63, "all but the last token of prompts that came before"
    assert found.steps["num_blocks_out"].sum() == 10 * 16 and found.steps["num_blocks_in"].sum() == 20 * 16


@pytest.mark.parametrize("plans_ahead", (False, True))
def test_a_slower_link_makes_first_tokens_later(plans_ahead: bool) -> None:
    means = [returning("0.33", rate, plans_ahead=plans_ahead).requests["ttft"].mean() for rate in (1e12, 1e7)]
    assert means[0] < means[1]


@pytest.mark.parametrize("plans_ahead", (False, True))
@pytest.mark.parametrize("version", ("0.19", "0.27", "0.33"))
def test_who_comes_to_an_idle_server_waits_for_the_whole_load(version: str, plans_ahead: bool) -> None:
    """And is told as parked so long. A load that began with an earlier step ended before the request came."""
    requests = returning(version, 1e6, plans_ahead=plans_ahead, gap_ns=3_000_000_000).requests
    found = requests["num_cached_tokens"] > 0
    assert found.sum() == 20
    assert requests["parked_time"].to_numpy() == pytest.approx(np.where(found, 16 * 1000 / 1e6, 0), abs=1e-8)
    assert (requests["ttft"] - requests["parked_time"]).to_numpy() == pytest.approx(2e-5, abs=1e-8)


@pytest.mark.parametrize("plans_ahead", (False, True))
def test_a_store_begins_with_the_step_after_its_own(plans_ahead: bool) -> None:
    """Which is planned before its own begins, where steps are planned ahead."""
    offload = OffloadOptions(rules=OffloadingRules())
    options = SchedulerOptions(
        policy="admission_order", watermark=0, allocation="chunk", full_hit="recompute_block",
        async_scheduling=plans_ahead,
    )  # fmt: skip
    scheduler = make_scheduler(
        options, num_blocks=9, block_size=4, max_num_seqs=4, max_num_batched_tokens=8, num_host_blocks=9,
        offload=offload, make_decodes=uniform_decodes,
    )  # fmt: skip
    links = ConnectorLinks(scheduler, 10, 1e9)
    scheduler.add(Request(0, 16, 2, token_ids=[*range(16)]))
    now, ends = 0, []
    plan = scheduler.schedule(now)
    for _ in range(2):
        assert plan is not None
        assert links.start(plan, now) == 0
        links.pop_ready(now)
        planned = scheduler.schedule(now) if plans_ahead else None
        now += 100
        scheduler.commit(plan, now)
        links.pop_ready(now)
        plan = planned or scheduler.schedule(now)
        ends.append(links.next_ns)
    assert ends == [100 + 20, 200 + 20], "two blocks of each step of 100 ns, at 10 ns each"


@pytest.mark.parametrize("plans_ahead", (False, True))
@pytest.mark.parametrize("version", ("0.19", "0.27", "0.33"))
@pytest.mark.parametrize("drafts", (False, True))
def test_compressed_equals_stepped(version: str, plans_ahead: bool, drafts: bool) -> None:
    """In a pool where decodes run out of blocks."""
    stepped, compressed = (
        returning(version, 1e8, compress=compress, plans_ahead=plans_ahead, num_blocks=53, drafts=drafts, gap_ns=50_000)
        for compress in (False, True)
    )
    assert_same(stepped, compressed)
    assert stepped.requests["num_preemptions"].sum() > 0
