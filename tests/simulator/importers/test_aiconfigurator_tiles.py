"""Products behind tile edges, and experts by a product that multiplies all padded rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulator.importers.aiconfigurator.deep_gemm import padded_experts
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


def test_padded_experts_multiply_all_rows_whatever_the_tokens() -> None:
    gemms = Gemms(Tables())  # type: ignore[arg-type]
    curve = padded_experts(gemms, MOE, 2, RATES)
    one, many = (float(curve.at(size)) for size in (1, 32768))
    rows_one, rows_many = 8 + 128 * 127 + 120, 8 * 32768 + 128 * 127  # of them 120 fill the last 128
    assert rows_one == 16384
    assert np.isclose(one, 2 * rows_one, rtol=0.02)  # two products of 1 us a row, and bytes
    assert many > 2 * rows_many * 0.98 and float(curve.at(16)) < 1.02 * one


def test_padded_rows_of_whole_experts_are_those_of_a_rank() -> None:
    gemms = Gemms(Tables())  # type: ignore[arg-type]
    whole = padded_experts(gemms, MOE, 1, RATES, 2)
    rows = 8 + 64 * 127 + 56  # of them 56 fill the last 128
    assert rows == 8192 and np.isclose(float(whole.at(1)), 2 * rows, rtol=0.02)


def test_padded_experts_need_block_scaled_weights() -> None:
    with pytest.raises(ProfileError, match="deepgemm: .* has no experts in fp8_block"):
        padded_experts(Gemms(Tables()), QWEN, 2, RATES)  # type: ignore[arg-type]
