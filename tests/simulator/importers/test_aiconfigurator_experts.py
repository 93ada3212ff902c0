"""Times of a mixture of experts that a kernel has for another model, taken over to this one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.importers.aiconfigurator.experts.kernels import (
    CUTLASS,
    KERNELS,
    TRITON,
    copying_work,
    experts,
    timed_kernels,
)
from simulator.models.weight_formats import QUANTIZATIONS
from simulator.profile.profile import ProfileError
from tests.simulator.builders import QWEN, resized

FIXED_US = 20.0
US_PER_WEIGHT = 1e-8
TOKENS = (1, 2, 4, 8, 64, 512, 4096, 16384)
GPT_OSS = resized(
    QWEN, hidden_size=2880, num_experts=128, num_experts_per_token=4, moe_intermediate_size=2880,
    quantization=QUANTIZATIONS["mxfp4"],
)  # fmt: skip


def work_us(tokens_per_expert: float, weights: float) -> float:
    """Time beyond the launches: a weight is read once, and multiplied with each of its expert's tokens."""
    return US_PER_WEIGHT * weights * (1 + tokens_per_expert / 8)


def padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


class Tables:
    """A database that knows the models of KERNELS only."""

    system, version = "made_up", "1.0"

    def rows(self, family: str, table: str, **where: Any) -> pd.DataFrame:
        assert (family, table, where["moe_ep_size"]) == ("moe", "moe_perf", 1)
        shape = [where[name] for name in ("hidden_size", "inter_size", "topk", "num_experts")]
        if (where.get("source"), where["moe_dtype"], *shape) not in [kernel[1:7] for kernel in KERNELS.values()]:
            return pd.DataFrame(columns=["time_us"])
        hidden, width, per_token, number = shape
        rows = []
        for ranks in (1, 2, 4, 32):
            for tokens in TOKENS:
                weights = number * padded(hidden, 256) * padded(width // ranks, 256)
                rows.append((ranks, tokens, FIXED_US + (ranks < 32) * work_us(tokens * per_token / number, weights)))
        return pd.DataFrame(rows, columns=["moe_tp_size", "num_tokens", "time_us"])


@given(st.sampled_from([*KERNELS]), st.sampled_from([1, 2, 4]), st.sampled_from(TOKENS[1:-1]))
def test_the_work_of_an_expert_is_taken_over_and_launches_stay(name: str, ranks: int, num_tokens: int) -> None:
    kernel = KERNELS[name]
    curve, num_dropped = experts(Tables(), GPT_OSS, ranks, name)  # type: ignore[arg-type]
    width = padded(2880 // ranks, kernel.intermediate_multiple)
    weights = 128 * 3072 * width  # vLLM pads the hidden size to a multiple of 256
    expected = FIXED_US + work_us(num_tokens * 4 / 128, weights)
    assert curve.at(num_tokens) == pytest.approx(expected, rel=0.01)
    assert num_dropped == 0 and curve.sizes.tolist() == [float(size) for size in TOKENS]


def test_padding_is_what_is_read() -> None:
    whole = resized(GPT_OSS, hidden_size=3072, moe_intermediate_size=2944)
    padded, exact = (experts(Tables(), model, 1, "marlin")[0] for model in (GPT_OSS, whole))  # type: ignore[arg-type]
    np.testing.assert_allclose(padded.times_us, exact.times_us)


@pytest.mark.parametrize(
    ("changes", "ranks", "kernel", "message"),
    [
        (
            {},
            1,
            "other",
            "no expert kernel 'other' for .* in mxfp4 .there: marlin for mxfp4, .*, triton for mxfp4.",
        ),
        ({"quantization": QUANTIZATIONS["int4"]}, 1, "marlin", "no expert kernel 'marlin' for .* in int4"),
        ({"num_experts": 0}, 1, "marlin", "no expert kernel"),
        ({}, 8, "marlin", "made_up/1.0 has no experts in int4_wo on 8 GPUs"),
        ({}, 1, "", "made_up/1.0 has no experts in w4a16_mxfp4 of hidden_size=2880"),
        ({"quantization": QUANTIZATIONS["int8"]}, 1, "", "no experts in int8"),
    ],
)
def test_what_was_not_timed_is_refused_by_name(changes: dict[str, Any], ranks: int, kernel: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        experts(Tables(), resized(GPT_OSS, **changes), ranks, kernel)  # type: ignore[arg-type]


def test_kernels_that_others_timed_are_read_where_they_were_timed() -> None:
    class Timed:
        system, version = "h200_sxm", "1.0"

        def rows(self, family: str, table: str, **where: Any) -> pd.DataFrame:
            us = 12.0 if (where.get("source"), where.get("version")) == ("trtllm", "1.3.0rc20") else 5.0
            return pd.DataFrame({"num_tokens": [1, 8], "time_us": us})

    model = resized(GPT_OSS, moe_intermediate_size=2048, quantization=QUANTIZATIONS["fp8_block"])
    times = [float(experts(Timed(), model, 4, kernel)[0].at(1)) for kernel in ("", CUTLASS)]  # type: ignore[arg-type]
    assert times == [5.0, 12.0] and timed_kernels("h200_sxm") == [CUTLASS] and timed_kernels("l40s") == []
    with pytest.raises(ProfileError, match="h200_sxm has no times of triton_experts in fp8_block"):
        experts(Timed(), model, 4, TRITON)  # type: ignore[arg-type]


def test_whole_experts_stand_in_where_blocks_cannot_be_split() -> None:
    class Timed:
        system, version = "made_up", "1.0"

        def rows(self, family: str, table: str, **where: Any) -> pd.DataFrame:
            times = {(2, 1): 30.0, (4, 1): 20.0, (1, 8): 15.0}
            found = times.get((where["moe_tp_size"], where["moe_ep_size"]))
            return pd.DataFrame({"num_tokens": [1, 8], "time_us": found}) if found else pd.DataFrame()

    model = resized(GPT_OSS, moe_intermediate_size=1536, quantization=QUANTIZATIONS["fp8_block"])
    times = [float(experts(Timed(), model, ranks)[0].at(1)) for ranks in (2, 4, 8)]  # type: ignore[arg-type]
    assert times == [30.0, 20.0, 15.0], "1,536 / 8 is no multiple of 128"


def test_padded_inputs_and_outputs_are_copied_by_one_kernel_each() -> None:
    assert copying_work(GPT_OSS, "mxfp4_mxfp8", pads_input=True) == (2, 2 * (2880 + 3072) * 2)
    assert copying_work(GPT_OSS, "mxfp4_mxfp8", pads_input=False) == (1, (2880 + 3072) * 2)
    for kernel in ("marlin", ""):
        assert (
            copying_work(GPT_OSS, kernel, pads_input=True) == copying_work(GPT_OSS, kernel, pads_input=False) == (0, 0)
        )


def test_experts_of_few_tokens_have_the_kernel_for_few_where_both_were_timed() -> None:
    class Twice(Tables):
        def rows(self, family: str, table: str, **where: Any) -> pd.DataFrame:
            timed = [("cutlass", 1, 50.0), ("min_latency", 1, 40.0), ("cutlass", 512, 90.0), ("min_latency", 512, 99.0)]
            return pd.DataFrame(timed, columns=["kernel_source", "num_tokens", "time_us"])

    curve, _ = experts(Twice(), resized(GPT_OSS, quantization=QUANTIZATIONS["nvfp4"]), 1)  # type: ignore[arg-type]
    assert curve.at(np.array([1.0, 512.0])).tolist() == [40.0, 90.0]
