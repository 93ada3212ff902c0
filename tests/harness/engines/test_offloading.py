"""Tiers behind the prefix cache, from the configuration to the results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine.core.scheduler_options import OffloadOptions
from harness.engines.resolving.memory import resolve_tiers
from harness.engines.resolving.system import model_shape, resolve
from harness.errors import ConfigError
from harness.results.stored.files import read_results
from harness.terminal import run
from simulator.models.kv_pool import KVPool
from simulator.versions.vllm_versions import vllm_version
from tests.harness.builders import config

# Conversations of the laptop's model, in a pool of one and a half of their longest.
RUN = (
    "model=tiny", "device=laptop-cpu", "cost=roofline", "trace=sharegpt_multiturn", "trace.num_requests=60",
    "arrival=sessions", "arrival.rate=5", "max_num_seqs=8", "max_num_batched_tokens=512", "max_model_len=2048",
    "num_blocks=200", "plots=false", "progress=false",
)  # fmt: skip
TIERS = ("tiers=host_disk", "tiers.host.gib=0.005", "tiers.disk.gib=1")


def summary(folder: Path, *overrides: str) -> dict[str, Any]:
    run(config(*RUN, *overrides), folder)
    return json.loads((folder / "summary.json").read_text())


def test_hits_by_tier_and_what_was_copied_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without, told = summary(tmp_path / "none"), summary(tmp_path / "tiers", *TIERS)
    assert told["prefix_cache_hit_rate"] > without["prefix_cache_hit_rate"] > 0
    assert told["host_hit_rate"] > 0 < told["disk_hit_rate"] and without["host_hit_rate"] == 0
    result = read_results(tmp_path / "tiers")[0]
    requests, steps = result.requests, result.steps
    prompt = requests["num_prompt_tokens"][requests["first_scheduled_time"].notna()].sum()
    for tier in ("host", "disk"):
        assert told[f"{tier}_hit_rate"] == pytest.approx(requests[f"num_{tier}_cached_tokens"].sum() / prompt)
    from_tiers = requests["num_host_cached_tokens"] + requests["num_disk_cached_tokens"]
    assert (from_tiers <= requests["num_cached_tokens"]).all()
    assert (requests["parked_time"][from_tiers > 0] > 0).all()
    assert told["blocks_from_host"] * 16 >= from_tiers.sum(), "what comes from the disk passes through the host"
    assert told["blocks_from_disk"] == steps["num_blocks_from_disk"].sum() > 0 < told["blocks_to_disk"]
    assert told["bytes_from_disk"] == told["blocks_from_disk"] * told["kv_block_bytes"]
    assert told["parked_s"] == pytest.approx(requests["parked_time"].sum())
    assert re.search(r"steps waited [\d.]+ s, requests 0\.0\d+ s in sum", " ".join(capsys.readouterr().out.split()))
    assert told["transfer_wait_s"] == pytest.approx(steps["transfer_time"].sum()) and told["transfer_wait_s"] > 0


def test_sizes_are_those_of_the_blocks_of_all_ranks() -> None:
    settings = config(*RUN, *TIERS, "tiers.overlap=false", "tiers.disk.eviction=fifo")
    system = resolve(settings)
    each = system.pool.block_bytes * 2
    tiers = resolve_tiers(settings.tiers, system.pool, 2, settings.network, vllm_version(None), system.model)
    assert tiers.num_host_blocks == int(0.005 * 2**30) // each
    expected = OffloadOptions(num_disk_blocks=2**30 // each, overlap=False, disk_eviction="fifo")
    assert tiers.offload == expected
    none = resolve_tiers(config(*RUN).tiers, system.pool, 2, settings.network, vllm_version(None), system.model)
    assert none.offload is None


@pytest.mark.parametrize(
    ("model", "version", "copies"),
    [("deepseek-v3", "0.33", 1), ("deepseek-v3", "0.27", 1), ("deepseek-v3", "0.19", 8), ("deepseek-v3.2", "0.27", 8),
     ("deepseek-v3.2", "0.33", 1), ("llama-3.1-8b", "0.33", 8)],
)  # fmt: skip
def test_latents_are_on_the_host_of_vllm_once(model: str, version: str, copies: int) -> None:
    """As each rank has all of them; of other KV each has its own heads."""
    settings = config("tiers=vllm", "scheduler=vllm", "tiers.host.gib=64", f"model={model}", "num_blocks=100")
    pool = KVPool(100, 16, 1 << 20)
    shape = model_shape(settings.model, "none", "auto")
    tiers = resolve_tiers(settings.tiers, pool, 8, settings.network, vllm_version(version), shape)
    assert tiers.num_host_blocks == 64 * 1024 // copies


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["tiers.offload=true"], "tiers.offload=true: blocks go to host memory first"),
        (["tiers=host", "tiers.disk.gib=1"], "tiers.disk.gib=1: only blocks of the prefix cache go"),
        (["tiers=host_disk", "scheduler.enable_prefix_caching=false"], "tiers.offload=true: without scheduler.enable"),
        (["tiers=host_disk", "scheduler.enable_chunked_prefill=false"], "tiers.overlap=true: a prompt whose first"),
        (["tiers=host_disk", "scheduler.max_padding=9"], "tiers.overlap=true: a prompt whose first"),
        (["tiers=vllm"], "scheduler.policy=.*: not with tiers.rule=vllm"),
        (["tiers=vllm", "scheduler=vllm", "tiers.disk.gib=1"], "tiers.disk.gib=1: not with tiers.rule=vllm"),
        (["tiers=vllm", "scheduler=vllm", "speculation=draft_model"], "speculation=draft_model: not with tiers.rule"),
        (
            ["tiers=vllm", "scheduler=vllm", "scheduler.async_scheduling=false", "pipeline_parallel_size=2"],
            "pipeline_parallel_size=2: a pipeline has no link to the host's memory",
        ),
        (["tiers=host_disk", "engine=cpu"], "tiers.disk.gib=512: engine=cpu has no disk tier"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(overrides: list[str], reason: str) -> None:
    base = [each for each in RUN if not each.startswith("engine.")]
    with pytest.raises(ConfigError, match=f"^{reason}"):
        config(*base, *overrides)


def test_a_tier_without_room_for_a_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^tiers.disk.gib=1e-08: has no room for a KV block of"):
        run(config(*RUN, *TIERS, "tiers.disk.gib=1e-8"), tmp_path)


def test_the_real_engine_takes_the_tiers_of_the_configuration() -> None:
    pytest.importorskip("torch")
    from harness.engines.real import resolve_real

    overrides = ["tiers.host.gib=2", "tiers.offload=true", "tiers.overlap=false", "tiers.host.eviction=fifo"]
    engine = resolve_real(config("engine=cpu", "model=tiny", "tiers=host", *overrides)).engine
    assert engine.host_kv_gib == 2 and engine.offload_options == OffloadOptions(overlap=False, host_eviction="fifo")


@pytest.mark.slow
def test_the_real_engine_finds_prefixes_in_host_memory(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    prompts = ["trace=shared_prefix", "trace.num_requests=16", "trace.num_prefixes=4", "trace.prefix_tokens=64"]
    prompts += ["trace.suffix.low=1", "trace.suffix.high=8", "trace.output.low=1", "trace.output.high=4"]
    engine = ["engine=cpu", "model=tiny", "engine.num_threads=1", "num_blocks=14", "max_num_seqs=2"]
    settings = config(
        *prompts, *engine, "max_num_batched_tokens=64", "arrival.rate=50", "max_model_len=128", "plots=false",
        "progress=false", "tiers=host", "tiers.host.gib=0.05", "tiers.offload=true",
    )  # fmt: skip
    told = run(settings, tmp_path)
    assert told["completed"] == 16 and told["host_hit_rate"] > 0 == told["disk_hit_rate"]
    assert told["blocks_from_host"] > 0 and told["parked_s"] > 0
