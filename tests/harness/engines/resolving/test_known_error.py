"""The cost model's known error: only figures of docs/fidelity.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import composed
from harness.engines.resolving.known_error import _rows, cost_model_text
from harness.engines.resolving.system import resolve

PAGE = (Path(__file__).parents[4] / "docs" / "fidelity.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("row", _rows(), ids=lambda row: f"{row['system']}-{row['models'][0]}-{row['quantization']}")
def test_every_figure_is_one_of_the_page(row: dict[str, str]) -> None:
    if row["statistic"] == "median":
        starts = f"| {row['runs']} | {row['tpot']:.1f} |", f"| {row['runs']} | kernels | {row['tpot']:.1f} |"
        lines = [line for line in PAGE.splitlines() if any(start in line for start in starts)]
        assert any(f"| {row['ttft']:.1f} |" in line for line in lines)
    else:
        assert f"TPOT within {row['tpot']} %" in PAGE and f"{row['ttft']} %" in PAGE


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (("cost=roofline",), "roofline, TPOT off by 37 %, throughput by 40 % at the median of 50 public runs"),
        (("cost=linear",), "linear, not validated"),
        (
            ("model=llama-3.1-70b", "quantization=fp8", "tensor_parallel_size=4"),
            "TPOT within 2.7 % at the median of 45 runs",
        ),
        (("model=llama-3.3-70b", "quantization=fp8", "device=h200", "tensor_parallel_size=4"), "TPOT within 6.3 %"),
        (("model=qwen3-4b",), "not validated for this model (others on this device: median TPOT error 1.9 to 41.5 %)"),
        (("device=a100-80gb",), "not validated for this model (others on this device: median TPOT error 2.9 to 7 %)"),
        (("device=l40s",), "not validated on l40s"),
        (("device=rtx-pro-6000",), "not validated on rtx_pro_6000_server"),
        (("device=rtx-4090",), "roofline, TPOT off by 37 %"),
    ],
)
def test_the_text_names_cost_model_and_error(overrides: tuple[str, ...], text: str) -> None:
    assert text in cost_model_text(resolve(composed(*overrides)))
