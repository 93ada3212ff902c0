"""Step times of two kinds in one comparison."""

from __future__ import annotations

import pytest

from harness.results.measures.step_times import mixed_text

ROOFLINE = "step times: cost=roofline, roofline of the device's rates"
MEASURED = "step times: measured kernels of Qwen/Qwen3-8B on NVIDIA H200, aiconfigurator_core h200_sxm/vllm/0.24.0"


@pytest.mark.parametrize("sources", [[], [ROOFLINE], [MEASURED, MEASURED], [MEASURED, None], [ROOFLINE, 3.0]])
def test_step_times_of_one_kind_need_no_words(sources: list[object]) -> None:
    assert mixed_text(sources) is None


def test_step_times_of_two_kinds_are_told() -> None:
    text = mixed_text([MEASURED, ROOFLINE, MEASURED])
    assert text is not None and text.startswith("1 of 3 configurations have step times from the roofline")
