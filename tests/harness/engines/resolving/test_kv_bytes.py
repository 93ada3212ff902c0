"""kv_cache_memory_bytes sets the pool of a simulation."""

from __future__ import annotations

import pandas as pd
import pytest

from harness import run
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
