"""What records tell of the measured engine: its clock's resolution, parallelism and KV pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import MeasuredRunError
from harness.measured import load_measured
from harness.measured.measured_run import TIMES, MeasuredRun, check_order, requests_table
from harness.validation.simulated_run import different_pool, simulation_config
from tests.harness.builders import config
from tests.harness.measured.builders import bench, refusal, write_llmservingsim


def with_settings(folder: Path, **settings: Any) -> str:
    """A folder of LLMServingSim whose engine had these settings too."""
    write_llmservingsim(folder)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"engine_kwargs": meta["engine_kwargs"] | settings}))
    return f"llmservingsim:{folder}"


# -- clocks -----------------------------------------------------------------------------------------------------------


def test_the_rounding_of_unix_times_is_no_contradiction() -> None:
    """The times of a log on two clocks: adding and subtracting 1.8e9 s moves them by up to 4.8e-7 s."""
    rng = np.random.default_rng(0)
    truth = np.sort(rng.uniform(0, 100, (500, 1)) + np.cumsum(rng.choice([0, 0.02], (500, 5)), axis=1), axis=1)
    epoch, offset = 1_776_663_089.999225, 1_776_662_000.123
    columns = {name: (truth[:, i] + epoch) - (offset if i else 0) for i, name in enumerate(TIMES)}
    columns["arrival_time"] -= offset
    columns["queued_time"] = columns["queued_time"] - 2e-8
    lengths = np.full(500, 3)
    table = requests_table({**columns, "num_prompt_tokens": lengths, "num_output_tokens": lengths})
    check_order(Path("log"), table)
    times = table[list(TIMES)].to_numpy()
    assert (np.diff(times, axis=1) >= 0).all()
    assert np.abs(times - (truth - truth[:, :1].min())[np.argsort(truth[:, 0])]).max() < 1e-6


def test_a_contradiction_beyond_rounding_is_refused() -> None:
    lengths = np.array([3])
    columns = {"arrival_time": [1.8e9], "first_token_time": [1.8e9 - 1e-5], "finish_time": [1.8e9 + 1]}
    table = requests_table({**columns, "num_prompt_tokens": lengths, "num_output_tokens": lengths})
    with pytest.raises(MeasuredRunError, match="first_token_time before arrival_time"):
        check_order(Path("log"), table)


# -- parallelism ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"data_parallel_size": 2}, "data parallelism (data_parallel_size=2)"),
        ({"data-parallel-size": "4"}, "data parallelism (data-parallel-size=4)"),
        ({"enable_expert_parallel": True}, "expert parallelism (enable_expert_parallel=True)"),
        ({"--enable-expert-parallel": "true"}, "expert parallelism"),
        ({"ep_size": 8}, "expert parallelism"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
    ],
    ids=str,
)
def test_a_run_with_other_parallelism_is_refused(settings: dict[str, Any], what: str, tmp_path: Path) -> None:
    assert f"measured with {what}" in refusal(with_settings(tmp_path / "a", **settings))
    assert f"measured with {what}" in refusal(bench(tmp_path / "b.json", **settings))


def test_a_run_on_one_replica_is_read(tmp_path: Path) -> None:
    single = {"data_parallel_size": 1, "enable_expert_parallel": False, "pipeline_parallel_size": None}
    assert load_measured(with_settings(tmp_path / "a", **single, tensor_parallel_size=2)).kv_tokens is None
    assert any("would go unnoticed" in note for note in load_measured(bench(tmp_path / "b.json")).notes)
    notes = load_measured(bench(tmp_path / "b.json", tensor_parallel_size=1)).notes
    assert not any("would go unnoticed" in note for note in notes)


# -- KV pool ----------------------------------------------------------------------------------------------------------


def test_the_pool_that_a_run_tells_is_simulated(tmp_path: Path) -> None:
    """By its settings, or by the log of its server beside the record, whose smallest rank counts."""
    run = load_measured(with_settings(tmp_path / "a", num_gpu_blocks=1000))
    assert run.kv_tokens == 16_000
    assert simulation_config(config("block_size=32"), run).num_blocks == 500
    name = with_settings(tmp_path / "b")
    log = "INFO [kv_cache_utils.py:1319] GPU KV cache size: {} tokens"
    (tmp_path / "b" / "server.log").write_text("\n".join(log.format(size) for size in ("16,016", "16,000")))
    run = load_measured(name)
    assert run.kv_tokens == 16_000 and simulation_config(config(), run).num_blocks == 1000
    assert simulation_config(config("num_blocks=7"), run).num_blocks == 7
    (tmp_path / "b" / "other.log").write_text(log.format("17,000"))
    assert "logs of different KV pools (other.log 17,000, server.log 16,000 tokens)" in refusal(name)


def test_what_meta_tells_of_pool_and_card_is_simulated(tmp_path: Path) -> None:
    name = with_settings(tmp_path / "a", max_num_seqs=None)
    meta = json.loads((tmp_path / "a" / "meta.json").read_text())

    def load(**more: Any) -> MeasuredRun:
        (tmp_path / "a" / "meta.json").write_text(json.dumps(meta | more))
        return load_measured(name)

    told = {"num_gpu_blocks": 2588, "block_size": 16, "gpu_memory_utilization": 0.9, "num_kv_tokens": 41408}
    run = load(kv_cache=told, resolved_config={"max_num_seqs": 64}, hardware={"memory_bytes": 24 << 30})
    assert run.kv_tokens == 41408 and simulation_config(config(), run).num_blocks == 2588
    assert run.settings["max_num_seqs"] == 64, "what was left open was resolved"
    assert load(kv_cache={"num_gpu_blocks": 100, "block_size": 32}).kv_tokens == 3200
    card = load(hardware={"memory_bytes": 70 << 30})
    assert simulation_config(config(), card).device.memory_bytes == 70 << 30
    assert simulation_config(config(), card).num_blocks is None
    for odd in ({"kv_cache": [1]}, {"kv_cache": {"num_kv_tokens": -1}}, {"hardware": {"memory_bytes": "x"}}):
        with pytest.raises(MeasuredRunError, match=r"meta.json: "):
            load(**odd)


def test_a_formula_that_is_off_the_measured_pool_is_called_so(tmp_path: Path) -> None:
    run = load_measured(with_settings(tmp_path / "a", num_gpu_blocks=1000))
    (line,) = different_pool(config(), run)
    assert line.startswith("KV pool: ") and "by the memory formula, 16,000 measured (+" in line
    assert different_pool(config("num_blocks=1000"), run) == [] == different_pool(config("num_blocks=1009"), run)
    (line,) = different_pool(config("num_blocks=900"), run)
    assert line == "KV pool: 14,400 tokens configured, 16,000 measured (-10.0 %); which is simulated"
    (line,) = different_pool(config("model=llama-3.1-70b"), run)
    assert "does not fit" in line
