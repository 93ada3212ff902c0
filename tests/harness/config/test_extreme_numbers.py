"""Absurd numbers at every numeric key of the schema: one line, or a run with possible figures.

Keys of traces and arrivals are tested with them, in `tests/harness/workload`.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from harness.config import parse
from harness.engines.resolving.system import resolve
from harness.errors import ConfigError, TwinServeError
from harness.jobs import execute
from simulator.quantities import RANGES
from tests.harness.builders import composed, config

SMALL = [
    "plots=false", "progress=false", "model=tiny", "device=laptop-cpu", "tensor_parallel_size=2", "max_num_seqs=64",
    "max_num_batched_tokens=512", "trace=synthetic", "trace.num_requests=4", "trace/lengths@trace.prompt=constant",
    "trace.prompt.value=20", "trace/lengths@trace.output=constant", "trace.output.value=5", "metrics.slo.ttft_ms=100",
]  # fmt: skip
VARIANTS: tuple[list[str], ...] = ([], ["cost=linear"], ["num_blocks=100"], ["scheduler=static"])
VALUES = (
    0, -1, 1, 5.5, 1e30, 10**30, 10**400, 1e-30, -1e-9, 2**31 - 1, 2**63, math.nan, math.inf, True,
)  # fmt: skip


def numeric_keys(values: Any, prefix: str = "") -> list[str]:
    if isinstance(values, dict):
        return [key for name, value in values.items() for key in numeric_keys(value, f"{prefix}{name}.")]
    return [] if isinstance(values, str | bool) else [prefix.rstrip(".")]


def cases() -> list[tuple[dict[str, Any], str, Any]]:
    """The base configuration, a key, and a value for it."""
    found = []
    for variant in VARIANTS:
        base: Any = OmegaConf.to_container(composed(*SMALL, *variant))
        for key in numeric_keys(base):
            if not key.startswith(("trace.", "arrival.")):
                limits = RANGES.get(key.rpartition(".")[2])
                values = [*VALUES, *((limits.low, limits.high) if limits else ())]
                found += [(base, key, value) for value in values]
    return found


def is_possible(figure: Any) -> bool:
    if isinstance(figure, dict):
        # The window of requests that count may end before the run begins: then no request counts.
        inner = (value for name, value in figure.items() if name not in ("config", "window_end_s", "queue_growth"))
        growth = figure.get("queue_growth")  # a slope: it is below 0 where the queue shrinks
        return (growth is None or math.isfinite(growth)) and all(map(is_possible, inner))
    if isinstance(figure, list):
        return all(map(is_possible, figure))
    return not isinstance(figure, int | float) or (math.isfinite(figure) and figure >= 0)


def check(base: dict[str, Any], key: str, value: Any, folder: Path) -> None:
    cfg = DictConfig(copy.deepcopy(base))
    OmegaConf.update(cfg, key, value, merge=False)
    (folder / "summary.json").unlink(missing_ok=True)
    try:
        execute(parse(cfg), folder)
    except TwinServeError as error:
        assert "\n" not in str(error), key
    else:
        assert is_possible(json.loads((folder / "summary.json").read_text())), (key, value)


def test_an_absurd_number_is_refused_in_one_line_or_gives_possible_figures(tmp_path: Path) -> None:
    for case in random.Random(0).sample(cases(), 20):
        check(*case, tmp_path)


@pytest.mark.slow
def test_all_absurd_numbers_are_refused_in_one_line_or_give_possible_figures(tmp_path: Path) -> None:
    assert len(cases()) > 3000
    for case in cases():
        check(*case, tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, value in itertools.product(("memory_bytes", "multiprocessors"), (0, 10**30))],
)
def test_sizes_of_a_device_have_limits(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"^device.{key}={value}: must be an integer >= .* and <= "):
        config(f"device.{key}={value}")


def test_reserved_blocks_are_fewer_than_the_memory_has_room_for() -> None:
    pool = resolve(config()).pool
    assert resolve(config(f"scheduler.reserved_blocks={pool.num_blocks - 1}"))
    with pytest.raises(ConfigError, match=f"^scheduler.reserved_blocks={pool.num_blocks}: must be < {pool.num_blocks}"):
        resolve(config(f"scheduler.reserved_blocks={pool.num_blocks}"))
    with pytest.raises(ConfigError, match=r"^scheduler.reserved_blocks=10{30}: must be an integer"):
        config(f"scheduler.reserved_blocks={10**30}")


def test_a_pool_of_too_many_blocks_is_refused_before_it_is_made() -> None:
    with pytest.raises(ConfigError, match=r"^block_size=1: device=laptop CPU has memory for \d+ KV blocks, at most"):
        resolve(config("model=tiny", "device=laptop-cpu", f"device.memory_bytes={1 << 50}", "block_size=1"))


def test_constants_that_no_fit_could_write_are_refused() -> None:
    """The weights of the largest model on the slowest device: the calibration file would be refused."""
    slow = ["device.memory_bandwidth=1e6", "device.memory_efficiency=0.001", "num_blocks=10", "cost=linear"]
    with pytest.raises(ConfigError, match=r"step_s would be .* for Qwen/Qwen3-8B: must be a number >= 0 and <= 10000"):
        resolve(config(*slow)).constants()
