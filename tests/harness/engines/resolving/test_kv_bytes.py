"""What the KV pool of a simulation is made of: kv_cache_memory_bytes, and states of sequences."""

from __future__ import annotations

import pandas as pd
import pytest

from harness import run
from harness.engines.resolving.system import pool_of
from harness.errors import ConfigError
from tests.harness.builders import config

TABLE = pd.DataFrame({"arrival_time": [0.0], "num_prompt_tokens": [9], "num_output_tokens": [2]})


def test_the_pool_holds_as_many_blocks_as_fit() -> None:
    found = run("model=llama-3.1-8b", "kv_cache_memory_bytes=1073741824", "arrival=trace", "plots=false", trace=TABLE)
    assert found.summary["num_blocks"] == 512 and found.summary["kv_block_bytes"] == 2 << 20
    assert " from 1.00 GiB, as configured" in found.summary["kv_pool"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["num_blocks=100"], "kv_cache_memory_bytes=2097152: give it or num_blocks, not both"),
        (["engine=cpu", "model=tiny"], "kv_cache_memory_bytes=2097152: in simulation only; give num_blocks"),
    ],
)
def test_what_it_does_not_go_with_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config("kv_cache_memory_bytes=2097152", *overrides)


def test_too_few_bytes_are_one_line() -> None:
    with pytest.raises(ConfigError, match="^kv_cache_memory_bytes=1048576: 1,048,576 bytes hold no KV block of"):
        run("kv_cache_memory_bytes=1048576", "arrival=trace", "plots=false", trace=TABLE)


def test_states_are_blocks_of_the_pool_where_it_is_paged() -> None:
    """One H200 serves Qwen3.5-27B with vLLM's default of 1,024 seats, whose states alone are more than its memory."""
    states = ("model=qwen3.5-27b", "device=h200", "scheduler=vllm")
    paged, apart = pool_of(config(*states)), pool_of(config(*states, "scheduler=sglang", "max_num_seqs=64"))
    assert (paged.state_blocks, paged.window_bytes, apart.state_blocks) == (147, 0, 0)
    assert paged.num_blocks * paged.block_bytes > 50 << 30 and apart.window_bytes == pytest.approx(
        64 * 147 << 20, rel=0.01
    )
    found = run(*states, "arrival=trace", "plots=false", trace=TABLE)
    assert "; 147 blocks for the state of each sequence" in found.summary["kv_pool"]


def test_with_kernels_without_graphs_no_memory_goes_to_graphs() -> None:
    ranks = ("model=deepseek-v3", "device=h200", "data_parallel_size=8", "expert_parallel=true", "scheduler=vllm")
    backends = ("deepep_high_throughput", "deepep_low_latency")
    eager, graphs = (pool_of(config(*ranks, f"engine.all2all_backend={each}")) for each in backends)
    assert eager == pool_of(config(*ranks, "engine.max_graph_tokens=0"))
    assert eager.num_blocks > graphs.num_blocks
