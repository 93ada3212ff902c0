"""Kernels that the database has no tables for, by formulas of made-up tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments import RESULTS
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve
from simulator.importers.aiconfigurator.other_kernels import float32_router, norm_exchange, routing_us
from simulator.models.block import Weights
from tests.simulator.builders import H100, QWEN, listed

SIZES = np.array([1.0, 8.0, 4096.0])
CURVE = MeasuredCurve(SIZES, np.array([4.0, 4.0, 20.0]))


class Tables:
    """An all-reduce of 5 us and a ns per byte; scaling an input takes 2 us and a ns per KiB, where it was timed."""

    system, version, backend = "made_up", "1.0", "vllm"

    def __init__(self, sm_version: int = 100, *, has_scaling: bool = True) -> None:
        self.rates = {
            "sm_version": sm_version, "mem_bw": 1e12, "mem_bw_empirical_scaling_factor": 0.5,
            "mem_empirical_constant_latency": 3e-6,
        }  # fmt: skip
        self._has_scaling = has_scaling

    def rows(self, family: str, table: str, **where: Any) -> pd.DataFrame:
        sizes = pd.DataFrame({"m": [1, 1024, 65536]})
        if table == "scale_matrix_perf":
            return sizes.assign(k=1024, time_us=2.0 + 3 * sizes["m"] * 1e-3)[: 3 * self._has_scaling]
        assert table == "custom_allreduce_perf" and where["backend"] == "vllm_graph"
        return sizes.assign(message_size=sizes["m"], time_us=5.0 + 2 * sizes["m"] * 1e-3)


def moved_us(num_bytes: float) -> float:
    return max(2.003, 2.0 + num_bytes / 1024 * 1e-3)


@pytest.mark.parametrize(("rows", "columns", "rounds"), [(256, 3072, False), (256, 3072, True), (160, 5120, False)])
@pytest.mark.parametrize("tokens", [1, 64, 8192])
def test_a_float32_router_casts_its_input_and_takes_longer_as_measured(
    rows: int, columns: int, rounds: bool, tokens: int
) -> None:
    measured = pd.read_csv(RESULTS / "float32_router.csv").query("rows == @rows and columns == @columns")
    times = measured[measured["tokens"] == tokens].set_index("precision")["us"]
    weights = Weights("router", "float32_router", rows, columns)
    found = float32_router(Tables(), CURVE, weights, H100, rounds=rounds)  # type: ignore[arg-type]
    beyond = float(found.at(tokens)) - float(CURVE.at(tokens)) - moved_us(6 * columns * tokens)
    told = max(times["high" if rounds else "highest"] - times["bf16"], 0.0)
    assert beyond == pytest.approx(told, rel=1e-3 if rows == 256 else 0.5, abs=0.01 if rows == 256 else 1.5)


def test_a_float32_router_takes_longer_where_the_rate_is_lower() -> None:
    weights, a100 = (
        Weights("router", "float32_router", 256, 3072),
        replace(H100, flops={"bf16": 312e12, "fp32": 19.5e12}),
    )
    slow, fast = (float32_router(Tables(), CURVE, weights, each).at(8.0) for each in (a100, H100))  # type: ignore[arg-type]
    cast = 4.0 + moved_us(6 * 3072 * 8)
    assert float(slow) - cast == pytest.approx((float(fast) - cast) * 67 / 19.5)


@pytest.mark.parametrize(
    ("name", "sm_version", "moved"),
    [
        ("minimax-m2.5", 103, [1024, 64, 64, 64, 192, 12288]),
        ("minimax-m2.5-nvfp4", 100, [1024, 64, 64, 64]),
        ("minimax-m2.5", 90, []),
        ("minimax-m2.5-nvfp4", 120, []),
        ("deepseek-v3", 100, []),
    ],
)
def test_kernels_beside_the_experts_choose_those_in_no_groups(name: str, sm_version: int, moved: list[int]) -> None:
    found = routing_us(Tables(sm_version), listed(name), SIZES) * np.ones(len(SIZES))  # type: ignore[arg-type]
    assert found.tolist() == pytest.approx([sum(moved_us(num_bytes * each) for num_bytes in moved) for each in SIZES])
    assert routing_us(Tables(), QWEN, SIZES) == 0.0  # type: ignore[arg-type]


def test_norms_over_the_heads_of_all_ranks_exchange_two_sums_for_each_token() -> None:
    found = norm_exchange(Tables(), 4, SIZES)  # type: ignore[arg-type]
    assert found.at(SIZES).tolist() == pytest.approx([5.008, 5.064, 5.0 + 8 * 4.096])
