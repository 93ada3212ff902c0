"""Products behind tile edges, and experts by a product that multiplies all padded rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulator.importers.aiconfigurator.experts.deep_gemm import padded_experts
from simulator.importers.aiconfigurator.gemms import Gemms
from simulator.importers.aiconfigurator.rules import SUSTAINED
from simulator.models.weight_formats import QUANTIZATIONS
from simulator.profile.profile import ProfileError
from tests.simulator.builders import QWEN, resized

FULL = (64, 128, 256, 512, 768, 1024, 32768)
RATES = {
    "mem_bw": 1e12, "mem_bw_empirical_scaling_factor": 1.0, "mem_empirical_constant_latency": 1e-6,
}  # fmt: skip
MOE = resized(
    QWEN, num_experts=128, num_experts_per_token=8, moe_intermediate_size=1536, quantization=QUANTIZATIONS["fp8_block"]
)


class Tables:
    """Products that take 1 us for each full row, and half as long again with one row in the last tile."""

    system, version = "made_up", "1.0"

    def __init__(self, outlier: int = 0, backend: str = "vllm") -> None:
        self._outlier = outlier
        self.backend = backend

    def rows(self, family: str, table: str, **where: Any) -> pd.DataFrame:
        if table == "scale_matrix_perf":
            return pd.DataFrame({"m": FULL, "k": 64, "time_us": 3.0})
        if table == "computescale_perf":
            return pd.DataFrame({"m": FULL, "k": 64, "time_us": [5 + (size - 64) / 100 for size in FULL]})
        points = [(size, float(size)) for size in FULL] + [(size + 1, 1.5 * size + 128) for size in FULL[1:-1]]
        rows = pd.DataFrame(points, columns=["m", "time_us"])
        rows.loc[rows["m"] == self._outlier, "time_us"] *= 4
        rows["time_us"] *= 2 if where.get("source") == "vllm" else 1
        return pd.concat([rows.assign(n=n, k=k) for n in (64, 8192) for k in (64, 8192)])


def test_full_tiles_stay_beside_open_ones() -> None:
    gemms = Gemms(Tables())  # type: ignore[arg-type]
    curve = gemms.curve("fp8", 64, 64)
    sustained = [64 + SUSTAINED * (size - 64) for size in FULL]
    assert [float(curve.at(size)) for size in FULL] == pytest.approx(sustained)
    assert float(curve.at(257)) == pytest.approx(64 + SUSTAINED * (512 - 64)) and gemms.num_dropped == 0


def test_static_scales_save_the_time_of_computing_them() -> None:
    dynamic, static = (Gemms(Tables(), static_scales=static) for static in (False, True))  # type: ignore[arg-type]
    for k in (64, 128):  # the table of scales has 64 alone
        saved = dynamic.curve("fp8", 64, k).at(512) - static.curve("fp8", 64, k).at(512)
        assert saved == pytest.approx((5 + SUSTAINED * (512 - 64) / 100) * k / 64)
    in_16_bits = [each.curve("bfloat16", 64, 64).times_us for each in (dynamic, static)]
    np.testing.assert_array_equal(in_16_bits[0], in_16_bits[1])


def test_products_of_tensorrt_llm_had_random_data_and_a_quantisation_that_static_scales_save() -> None:
    tables = Tables(backend="trtllm")
    dynamic, static = (Gemms(tables, static_scales=static) for static in (False, True))  # type: ignore[arg-type]
    assert float(dynamic.curve("bfloat16", 64, 64).at(512)) == pytest.approx(512)
    saved = dynamic.curve("fp8", 64, 64).at(512) - static.curve("fp8", 64, 64).at(512)
    assert saved == pytest.approx(5 + (512 - 64) / 100 + 3)
    of_vllm = 2 * (64 + SUSTAINED * (512 - 64))  # in NVFP4, where its autotuner did not run
    assert float(dynamic.curve("nvfp4", 64, 64).at(512)) == pytest.approx(of_vllm)


@pytest.mark.parametrize("outlier", [512, 513])
def test_an_outlier_among_tiles_is_dropped(outlier: int) -> None:
    gemms = Gemms(Tables(outlier))  # type: ignore[arg-type]
    assert outlier not in gemms.curve("fp8", 64, 64).sizes and gemms.num_dropped == 1


class Lines:
    """Block-scaled products that take `QUANTISED` us for each input of a row and `MULTIPLIED` for each operation."""

    system, version, backend = "made_up", "1.0", "vllm"

    def rows(self, family: str, table: str, **where: Any) -> pd.DataFrame:
        sizes = [(m, n, k) for m in (64, 32768) for n in (64, 1024, 8192) for k in (512, 4096)]
        rows = pd.DataFrame(sizes, columns=["m", "n", "k"])
        work = rows["m"] * rows["k"] * (QUANTISED + MULTIPLIED * rows["n"])
        return rows.assign(time_us=np.maximum(work, 1.0))  # a launch hides small products


QUANTISED, MULTIPLIED = 1e-7, 1e-9
FAST = {**RATES, "mem_bw": 1e30, "mem_empirical_constant_latency": 0.0}
HIDDEN = MOE.hidden_size


def expected_us(num_tokens: int, width: int, num_local: int) -> float:
    """What a layer's experts take where memory is fast, from the rows that vLLM multiplies."""
    rows = -(-(num_tokens * 8 + num_local * 127) // 128) * 128
    multiplied = SUSTAINED * MULTIPLIED * 3 * HIDDEN * width
    return rows * (multiplied + QUANTISED * width) + num_tokens * QUANTISED * HIDDEN


@pytest.mark.parametrize(("ranks", "expert_ranks"), [(2, 1), (1, 2)])
def test_padded_experts_multiply_all_rows_whatever_the_tokens(ranks: int, expert_ranks: int) -> None:
    gemms = Gemms(Lines())  # type: ignore[arg-type]
    curve = padded_experts(gemms, MOE, ranks, FAST, expert_ranks)
    for num_tokens in (1, 16, 512, 32768):
        expected = expected_us(num_tokens, 1536 // ranks, 128 // expert_ranks)
        assert float(curve.at(num_tokens)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("num_tokens", [1, 16])
def test_the_first_block_of_an_expert_waits_for_its_weights(num_tokens: int) -> None:
    gemms = Gemms(Lines())  # type: ignore[arg-type]
    curve, weights = padded_experts(gemms, MOE, 2, {**FAST, "mem_bw": 1e11}), 3 * HIDDEN * 768 / 1e5
    activations = 128 * (HIDDEN * 3 + 5 * 768) / 1e5  # into and out of both products
    with_tokens = 128 * (1 - (120 / 128) ** num_tokens)
    moved = 16384 * 6 * 768 / 1e5 + num_tokens * (8 * 3 + 3) * HIDDEN / 1e5  # by activation, scatter and gather
    others = (128 - with_tokens) * 128 * SUSTAINED * MULTIPLIED * 3 * HIDDEN * 768
    quantised = QUANTISED * (16384 * 768 + num_tokens * HIDDEN)
    expected = with_tokens * (weights + activations) + moved + others + quantised
    assert float(curve.at(num_tokens)) == pytest.approx(expected, rel=1e-6)


def test_padded_experts_need_block_scaled_weights() -> None:
    with pytest.raises(ProfileError, match="deepgemm: .* has no experts in fp8_block"):
        padded_experts(Gemms(Tables()), QWEN, 2, FAST)  # type: ignore[arg-type]


def test_what_a_row_takes_needs_products_of_several_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Lines().rows("gemm", "gemm_perf")
    monkeypatch.setattr(Lines, "rows", lambda self, *names, **where: rows[rows["n"] == 64])
    with pytest.raises(ProfileError, match="made_up: too few large products in fp8_block"):
        Gemms(Lines()).row_us("fp8_block", 512)  # type: ignore[arg-type]
