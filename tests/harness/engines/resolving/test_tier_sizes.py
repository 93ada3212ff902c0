"""Host memory behind the device's, from the configuration to the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.engines.resolving.system import resolve
from harness.errors import ConfigError
from harness.results.stored.files import read_results
from harness.terminal import run
from tests.harness.builders import config

STARVED = (
    "model=tiny", "device=laptop-cpu", "num_blocks=60", "max_num_seqs=16", "max_num_batched_tokens=256",
    "max_model_len=900", "trace=synthetic", "trace.num_requests=30", "arrival=all_at_once", "progress=false",
)  # fmt: skip
SWAP = ("scheduler.preemption=swap", "tiers.host.gib=0.01")


def summary_of(folder: Path, *overrides: str) -> dict[str, Any]:
    return run(config(*STARVED, *overrides), folder)


@pytest.mark.parametrize("ranks", [1, 2])
def test_host_memory_is_counted_in_blocks_of_all_ranks(ranks: int) -> None:
    system = resolve(config("num_blocks=100", "tiers=host", f"tensor_parallel_size={ranks}", "tiers.host.gb_per_s=10"))
    each = 2 * 36 * 16 * 8 * 128 * 2
    assert system.tiers.num_host_blocks == (64 << 30) // each
    assert system.tiers.transfer_block_us(system.pool) == pytest.approx(each / ranks / 10e9 * 1e6)


@pytest.mark.parametrize(
    ("gib", "message"),
    [("1e-6", "^tiers.host.gib=1e-06: has no room for a KV block of"), ("1e6", "^tiers.host.gib=1e.06: .* at most")],
)
def test_a_size_of_host_memory_that_cannot_be_is_refused(gib: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        summary_of(tmp_path, "scheduler.preemption=swap", f"tiers.host.gib={gib}")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["scheduler.preemption=swap"], "^scheduler.preemption=swap: needs host memory .* tiers=host"),
        (["scheduler.preemption=auto", "tiers=host", "engine=cpu"], "^scheduler.recompute_token_us=null: engine=cpu"),
        (["scheduler.recompute_token_us=3"], "^scheduler.recompute_token_us=3: read by preemption='auto' only"),
    ],
)
def test_preemption_needs_what_it_works_with(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(*overrides)


def test_results_tell_what_preemptions_kept(tmp_path: Path) -> None:
    found = {
        "recompute": summary_of(tmp_path / "recompute"),
        "partial": summary_of(tmp_path / "partial", "scheduler.preemption=partial"),
        "swap": summary_of(tmp_path / "swap", *SWAP),
    }
    for mode, summary in found.items():
        assert summary["preemptions"] > 0 and summary["completed"] + summary["rejected"] == 30
        kept = {"swap": summary["swapped_preemptions"], "partial": summary["partial_preemptions"]}
        assert [name for name, count in kept.items() if count] == ([] if mode == "recompute" else [mode])
    swap = found["swap"]
    assert swap["recomputed_tokens"] == 0 < found["partial"]["recomputed_tokens"]
    result, _ = read_results(tmp_path / "swap")
    steps = result.steps
    assert swap["blocks_to_host"] == swap["blocks_from_host"] == steps["num_blocks_out"].sum() > 0
    assert swap["bytes_to_host"] == swap["blocks_to_host"] * swap["kv_block_bytes"]
    assert swap["transfer_wait_s"] == pytest.approx(steps["transfer_time"].sum()) and swap["transfer_wait_s"] > 0
    assert (steps["transfer_time"] > 0).equals(steps["num_blocks_out"] > 0)
    assert (steps["transfer_time"] <= steps["duration"]).all()
    assert not any(found["recompute"][name] for name in ("blocks_to_host", "bytes_from_host", "transfer_wait_s"))
    assert result.requests["num_swaps"].sum() == swap["swapped_preemptions"]


@pytest.mark.parametrize(("gb_per_s", "is_swapped"), [(100, True), (0.01, False)])
def test_auto_weighs_the_link_against_the_cost_model(gb_per_s: float, is_swapped: bool, tmp_path: Path) -> None:
    auto = ("scheduler.preemption=auto", "tiers.host.gib=0.01", f"tiers.host.gb_per_s={gb_per_s}")
    summary = summary_of(tmp_path, *auto)
    assert summary["swapped_preemptions"] == (summary["preemptions"] if is_swapped else 0)
