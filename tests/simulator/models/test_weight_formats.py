"""Quantised weights: bytes of published checkpoints, and step times by format and device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.costs import linear
from simulator.costs.roofline import RooflineCost
from simulator.device import Device
from simulator.models.kv_pool import GIB
from simulator.models.memory import size_kv_pool
from simulator.models.model import Model
from simulator.models.weight_formats import QUANTIZATIONS, UnsupportedQuantizationError
from simulator.profile.checks import check_fits
from simulator.profile.profile import ProfileError
from tests.simulator.builders import META, MODEL, MOE, QWEN, load_model, profile, work

FP8_H100 = Device(
    "H100", 81559 << 20, 3.35e12, {"bf16": 989e12, "fp8": 1979e12, "int8": 1979e12, "fp32": 67e12},
    0.8, 0.7, 450e9, 1e-5, 0.0,
)  # fmt: skip
SIMPLE = (QWEN, load_model("llama-3.1-8b"), MOE)


def in_format(model: Model, name: str) -> Model:
    return replace(model, quantization=QUANTIZATIONS[name])


@pytest.mark.parametrize(
    ("model", "name", "ranks", "gib"),
    [
        # "Loading model weights took ..." in logs of vLLM, in GiB per GPU.
        ("llama-3.1-70b", "int8", 2, 33.8807),  # neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8, vLLM 0.5.4
        ("llama-3.1-70b", "fp8", 2, 33.8807),  # one byte a weight and a scale per channel, as int8
        (
            "llama-3.1-8b",
            "int4",
            1,
            5.3494,
        ),  # kaitchup/Meta-Llama-3.1-8B-Instruct-autoround-gptq-4bit-sym, groups of 128
        ("qwen3-30b-a3b", "int4", 1, 15.6841),  # nytopop/Qwen3-30B-A3B.w4a16, vLLM issue 17327
    ],
)
def test_weights_take_what_vllm_logs(model: str, name: str, ranks: int, gib: float) -> None:
    assert in_format(load_model(model), name).weight_bytes(ranks) / GIB == pytest.approx(gib, rel=0.02)


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_bytes_of_a_matrix_by_hand(name: str) -> None:
    """300 x 1000 weights; blocks at the edges have scales of their own."""
    by_hand = {
        "none": 600_000, "fp8": 300_000 + 300 * 4, "fp8_block": 300_000 + 3 * 8 * 4, "int8": 300_000 + 300 * 4,
        "int4": 150_000 + 300 * 8 * 2, "int4_32": 150_000 + 300 * 32 * 2,
        "nvfp4": 150_000 + 300 * 63, "nvfp4_w4a16": 150_000 + 300 * 63, "mxfp4": 150_000 + 300 * 32,
    }  # fmt: skip
    assert QUANTIZATIONS[name].matrix_bytes(300, 1000, 2) == by_hand[name]


def test_only_experts_are_in_mxfp4() -> None:
    plain, quantized = MOE.weight_bytes(), in_format(MOE, "mxfp4").weight_bytes()
    experts = sum(
        count * each.copies * each.rows * each.columns for count, each in MOE.matrices() if each.part == "experts"
    )
    assert plain - quantized == pytest.approx(experts * (2 - 4.25 / 8))


@pytest.mark.parametrize("model", SIMPLE, ids=lambda model: model.name)
@pytest.mark.parametrize("ranks", [1, 2])
def test_fewer_bytes_leave_a_larger_pool_by_just_these(model: Model, ranks: int) -> None:
    limits: dict[str, Any] = {
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 64,
    }
    device = replace(FP8_H100, memory_bytes=2 * FP8_H100.memory_bytes)
    plain = size_kv_pool(model, device, tensor_parallel_size=ranks, **limits)
    for name in QUANTIZATIONS:
        pool = size_kv_pool(in_format(model, name), device, tensor_parallel_size=ranks, **limits)
        saved = plain.weight_bytes - pool.weight_bytes  # with what experts in MXFP4 are padded by
        saved += plain.activation_bytes - pool.activation_bytes  # kernels of MXFP4 keep no buffers of experts
        assert abs((pool.num_blocks - plain.num_blocks) * pool.block_bytes - saved) <= pool.block_bytes
        halved = size_kv_pool(
            replace(in_format(model, name), kv_dtype="fp8"), device, tensor_parallel_size=ranks, **limits
        )
        assert halved.weight_bytes == pool.weight_bytes and halved.num_blocks in range(
            2 * pool.num_blocks, 2 * pool.num_blocks + 2
        )


@pytest.mark.parametrize("model", SIMPLE[:2], ids=lambda model: model.name)
@pytest.mark.parametrize("name", ["fp8", "fp8_block", "int8", "int4", "nvfp4"])
def test_a_decode_at_batch_1_scales_with_the_bytes_of_its_weights(model: Model, name: str) -> None:
    """Without the embeddings, of which a step reads one row; inputs and norms are 1 % of it."""
    step = work([], [1])

    def weights(shape: Model) -> int:
        return shape.weight_bytes() - shape.vocab_size * shape.hidden_size * shape.dtype_bytes

    plain, quantized = (RooflineCost(shape, FP8_H100).step_ns(step) for shape in (model, in_format(model, name)))
    expected = weights(in_format(model, name)) / weights(model)
    assert quantized / plain == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("model", SIMPLE, ids=lambda model: model.name)
@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_more_tokens_never_take_less_time(model: Model, name: str) -> None:
    cost = RooflineCost(in_format(model, name), FP8_H100)
    decodes = [cost.step_ns(work([], [1000] * size)) for size in (1, 2, 8, 64, 65, 500)]
    prompts = [cost.step_ns(work([(0, size, True)], [])) for size in (1, 16, 300, 301, 4096)]
    assert decodes == sorted(decodes) and prompts == sorted(prompts)


def test_a_long_prompt_costs_by_the_arithmetic_of_its_format() -> None:
    """At 16,384 tokens the products are bound by arithmetic: fp8 halves them and pays for quantising the inputs."""
    step = work([(0, 16_384, False)], [])
    times = {name: RooflineCost(in_format(QWEN, name), FP8_H100).step_ns(step) for name in QUANTIZATIONS}
    assert times["none"] == times["int4"] == times["nvfp4"]  # multiplied in 16 bits on this device
    assert times["fp8"] == times["int8"] == times["fp8_block"]
    products = sum(2 * count * each.rows * each.columns for count, each in QWEN.matrices()) * 16_384 / (989e12 * 0.7)
    inputs = sum(count * each.columns for count, each in QWEN.matrices()) * 16_384 * 3 / (3.35e12 * 0.8)
    assert (times["none"] - times["fp8"]) * 1e-9 == pytest.approx(products * (1 - 989 / 1979) - inputs, rel=1e-6)


def test_a_device_without_the_arithmetic_is_refused_or_multiplies_in_16_bits() -> None:
    bare = replace(FP8_H100, flops={"bf16": 989e12, "fp32": 67e12})
    for cost in (RooflineCost, linear.constants):
        with pytest.raises(UnsupportedQuantizationError, match="^quantization=int8: H100 has no rate flops.int8"):
            cost(in_format(QWEN, "int8"), bare, 1)
    step = work([(0, 8192, False)], [])
    weight_only, plain = (RooflineCost(in_format(QWEN, name), bare).step_ns(step) for name in ("fp8", "none"))
    assert weight_only == plain


def test_the_linear_model_has_defaults_by_format() -> None:
    plain, fp8 = (linear.constants(in_format(QWEN, name), FP8_H100, 1) for name in ("none", "fp8"))
    assert fp8["prompt_token_s"].default == pytest.approx(plain["prompt_token_s"].default * 989 / 1979)
    assert fp8["step_s"].default == pytest.approx(
        plain["step_s"].default * in_format(QWEN, "fp8").weight_bytes() / QWEN.weight_bytes()
    )


def test_a_profile_of_another_format_is_refused() -> None:
    check_fits(profile(), MODEL, 1)
    with pytest.raises(ProfileError, match="^profiled with quantization=none, this run has fp8$"):
        check_fits(profile(), in_format(MODEL, "fp8"), 1)
    measured = profile(source=META.source | {"quantization": "fp8"})
    check_fits(measured, in_format(MODEL, "fp8"), 1)
    with pytest.raises(ProfileError, match="^profiled with quantization=fp8, this run has none$"):
        check_fits(measured, MODEL, 1)
