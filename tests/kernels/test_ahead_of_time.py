"""The kernels compile for sm_80, sm_90 and sm_100 without a GPU; those of attention have a file of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("kernels are interpreted in this process", allow_module_level=True)

from kernels import (  # noqa: E402
    activation,
    decode_step,
    fp8_linear,
    keep_threshold,
    kv_integers,
    kv_store,
    moe,
    norm,
    rotary,
    rotary_store,
    sampler,
)
from tests.kernels.aot import CUOBJDUMP, compile_kernel, diagonal  # noqa: E402

if not CUOBJDUMP.exists():
    pytest.skip("this triton comes without cuobjdump", allow_module_level=True)

CAPABILITIES = [80, 90, 100]
ALL_CAPABILITIES = [80, 89, 90, 100, 120]
FP8_CAPABILITIES = [90, 100]  # sm_80 has no conversion to and from e4m3
# Shared memory that a program may use: 163 KB on sm_80, 227 KB on sm_90 and sm_100.
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
BITS = {"i8": 8, "u8": 4}  # of the elements of a cache of integers
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
BF16, F32, I32, I64 = "*bf16", "*fp32", "*i32", "*i64"


SMALL_KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "store_kv": (
        kv_store.store_kv_kernel,
        dict.fromkeys(("k_ptr", "v_ptr", "k_cache_ptr", "v_cache_ptr"), BF16)
        | {"slots_ptr": I64, "k_stride": "i32", "v_stride": "i32", "kv_scales_ptr": F32},
        {"width": 1024, "head_dim": 128, "block": 1024, "quantized": False, "fp8_max": kv_store.FP8_MAX},
    ),
    "store_kv_float8": (
        kv_store.store_kv_kernel,
        {"k_ptr": BF16, "v_ptr": BF16, "k_cache_ptr": "*fp8e4nv", "v_cache_ptr": "*fp8e4nv", "slots_ptr": I64}
        | {"k_stride": "i32", "v_stride": "i32", "kv_scales_ptr": F32},
        {"width": 1024, "head_dim": 128, "block": 1024, "quantized": True, "fp8_max": kv_store.FP8_MAX},
    ),
    **{
        f"store_{cache}": (
            kv_integers.store_integers_kernel,
            dict.fromkeys(("k_ptr", "v_ptr"), BF16)
            | dict.fromkeys(("k_cache_ptr", "v_cache_ptr"), f"*{cache}")
            | {"slots_ptr": I64, "k_stride": "i32", "v_stride": "i32"},
            {
                "head_dim": 128,
                "block_size": 16,
                "bits": bits,
                "block": 16 * bits,
                "largest": 127.0 if bits == 8 else 7.0,
            }
            | {"smallest_scale": kv_integers.SMALLEST_SCALE, "largest_scale": kv_integers.LARGEST_SCALE},
        )
        for cache, bits in BITS.items()
    },
    "rms_norm": (
        norm.rms_norm_kernel,
        {"x_ptr": BF16, "weight_ptr": BF16, "out_ptr": BF16, "num_rows": "i32", "heads": "i32"}
        | {"token_stride": "i32", "head_stride": "i32", "eps": "fp32"},
        {"width": 128, "block": 128, "rows_per_program": 8},
    ),
    "add_rms_norm": (
        norm.add_rms_norm_kernel,
        dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "out_ptr", "total_ptr"), BF16)
        | {"x_stride": "i32", "residual_stride": "i32", "eps": "fp32"},
        {"width": 5120, "block": 8192},
    ),
    "rotary": (
        rotary.rotary_kernel,
        dict.fromkeys(("q_ptr", "k_ptr", "q_out_ptr", "k_out_ptr"), BF16)
        | {"cos_sin_ptr": F32, "positions_ptr": I64, "q_stride": "i32", "k_stride": "i32"},
        {"heads": 28, "kv_heads": 4, "half": 64, "block_h": 32, "block_kv": 4, "block_d": 64},
    ),
    "silu_and_mul": (
        activation.silu_and_mul_kernel,
        {"x_ptr": BF16, "out_ptr": BF16},
        {"width": 3072, "block": 1024},
    ),
    "begin_decode": (
        decode_step.begin_decode_kernel,
        {"lengths_ptr": I64, "tables_ptr": I32, "positions_ptr": I64, "slots_ptr": I64, "contexts_ptr": I32}
        | {"num_rows": "i32", "table_stride": "i32"},
        {"block_size": 16, "block": 128},
    ),
    "end_decode": (
        decode_step.end_decode_kernel,
        dict.fromkeys(("sampled_ptr", "tokens_ptr", "lengths_ptr", "ring_ptr", "cursor_ptr"), I64)
        | {"num_rows": "i32", "ring_stride": "i32"},
        {"block": 128},
    ),
    "sample_block": (
        sampler.sample_block_kernel,
        {"logits_ptr": BF16, "temperature_ptr": F32, "threshold_ptr": F32, "seeds_ptr": I64, "positions_ptr": I64}
        | {"score_ptr": F32, "token_ptr": I32, "row_stride": "i32"},
        {"vocabulary": 151936, "block": 4096, "uniform_scale": sampler.UNIFORM_SCALE, "use_threshold": True},
    ),
    "sample_join": (
        sampler.sample_join_kernel,
        {"score_ptr": F32, "token_ptr": I32, "out_ptr": I64},
        {"blocks": 38, "padded": 64, "vocabulary": 151936},
    ),
    "quantize_tokens_float8": (
        fp8_linear.quantize_tokens_kernel,
        {"x_ptr": BF16, "out_ptr": "*fp8e4nv", "scales_ptr": F32, "x_stride": "i32"},
        {"k_size": 28672, "columns": 28672, "block": 1024, "smallest": 1e-12, "fp8_max": kv_store.FP8_MAX},
    ),
    "sum_choices": (
        moe.sum_choices_kernel,
        {"down_ptr": F32, "out_ptr": BF16},
        {"top_k": 8, "hidden": 2048, "block": 1024},
    ),
    "grouped_gemm": (
        moe.grouped_gemm_kernel,
        {"x_ptr": BF16, "weight_ptr": BF16, "out_ptr": BF16, "order_ptr": I32, "tile_experts_ptr": I32}
        | {"tile_starts_ptr": I32, "expert_ends_ptr": I32, "pair_weights_ptr": F32},
        {"x_divisor": 8, "num_experts": 128, "n_size": 1536, "k_size": 2048, "weighted": False}
        | {"block_m": 64, "block_n": 64, "block_k": 64, "interpreted": False},
    ),
}


@pytest.mark.parametrize(("capability", "name"), diagonal(CAPABILITIES, SMALL_KERNELS))
def test_small_kernels(tmp_path: Path, capability: int, name: str) -> None:
    if name.endswith("float8") and capability not in FP8_CAPABILITIES:
        pytest.skip("no conversion to e4m3 there")
    kernel, types, constants = SMALL_KERNELS[name]
    usage = compile_kernel(kernel, types, constants, capability, tmp_path, num_warps=4, num_stages=3)
    assert usage.stack == 0, usage
    assert usage.shared <= SHARED_BYTES[capability], usage


@pytest.mark.parametrize(
    ("num_tokens", "rows", "columns", "capability", "dtype", "quantized"),
    diagonal(
        [(1, 1, 4096), (2048, 128, 128)],
        [(80, "bf16", False), (90, "fp32", False)] + [(capability, "bf16", True) for capability in (89, 90, 100)],
    ),
)
def test_product_with_float8_weights_does_not_spill(
    tmp_path: Path, capability: int, dtype: str, quantized: bool, rows: int, columns: int, num_tokens: int
) -> None:
    types = {"x_ptr": f"*{dtype}", "weight_ptr": "*u8", "out_ptr": f"*{dtype}", "x_scales_ptr": F32, "scales_ptr": F32}
    types |= dict.fromkeys(("x_ptr", "weight_ptr"), "*fp8e4nv") if quantized else {}
    types |= {"num_tokens": "i32", "x_stride": "i32"}
    blocks = fp8_linear.gemm_blocks(num_tokens, columns, 1 if quantized else ELEMENT_BYTES[dtype])
    constants = dict(zip(("block_m", "block_n", "block_k"), blocks, strict=True))
    constants |= {"n_size": 6144, "k_size": 4096, "scale_rows": rows, "scale_columns": columns}
    constants |= {"quantized_x": quantized, "interpreted": False}
    options = {"num_warps": 4, "num_stages": 3}
    usage = compile_kernel(fp8_linear.fp8_gemm_kernel, types, constants, capability, tmp_path, **options)
    assert usage.stack == 0, usage
    assert usage.shared <= 99 * 1024, usage  # of sm_89, the least of these


STORE_SHAPES = [
    ("bf16", 2, 128, True), ("fp8e4nv", 2, 128, True), ("i8", 8, 128, True), ("u8", 8, 128, True),
    ("bf16", 16, 256, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("capability", "cache", "group", "head_dim", "normed"), diagonal(ALL_CAPABILITIES, STORE_SHAPES)
)
def test_rotary_store(tmp_path: Path, capability: int, cache: str, group: int, head_dim: int, normed: bool) -> None:
    if cache == "fp8e4nv" and capability == 80:
        pytest.skip("no conversion to e4m3 there")
    types = dict.fromkeys(("qkv_ptr", "q_weight_ptr", "k_weight_ptr", "q_out_ptr"), BF16)
    types |= dict.fromkeys(("k_cache_ptr", "v_cache_ptr"), f"*{cache}") | {"cos_sin_ptr": F32, "kv_scales_ptr": F32}
    types |= {"positions_ptr": I64, "slots_ptr": I64, "qkv_stride": "i32", "eps": "fp32"}
    constants: dict[str, Any] = {"kv_heads": 8, "group_size": group, "half": head_dim // 2, "normed": normed}
    constants |= {"block_g": group, "block_d": head_dim // 2, "block_size": 16, "bits": BITS.get(cache, 0)}
    constants |= {
        "quantized": cache == "fp8e4nv",
        "fp8_max": kv_store.FP8_MAX,
        "largest": 127.0 if cache == "i8" else 7.0,
    }
    constants |= {"smallest_scale": kv_integers.SMALLEST_SCALE, "largest_scale": kv_integers.LARGEST_SCALE}
    warps = rotary_store.num_warps(group, head_dim)
    usage = compile_kernel(rotary_store.rotary_store_kernel, types, constants, capability, tmp_path, num_warps=warps)
    assert usage.stack == 0, usage
    assert usage.registers <= 80, usage  # 24 warps per multiprocessor and more
    assert usage.shared <= 4096, usage  # of integers, whose scale is a maximum over the warps


THRESHOLD_SHAPES = [("bf16", 16, keep_threshold.BLOCK), ("fp32", 0, keep_threshold.WIDE_BLOCK)]


@pytest.mark.parametrize(("capability", "dtype", "shift", "block"), diagonal(ALL_CAPABILITIES, THRESHOLD_SHAPES))
def test_keep_threshold(tmp_path: Path, capability: int, dtype: str, shift: int, block: int) -> None:
    types = {"logits_ptr": f"*{dtype}", "temperature_ptr": F32, "top_k_ptr": I32, "top_p_ptr": F32, "out_ptr": F32}
    constants = {
        "vocabulary": 151936,
        "shift": shift,
        "block": block,
        "unit": float(1 << keep_threshold.MASS_BITS),
    }
    constants |= {"use_k": True, "use_p": True}
    usage = compile_kernel(
        keep_threshold.keep_threshold_kernel,
        types | {"row_stride": "i32"},
        constants,
        capability,
        tmp_path,
        num_warps=16,
    )
    assert usage.stack == 0, usage
    assert usage.registers <= 128, usage  # one program of 16 warps per multiprocessor
    assert usage.shared <= 8192, usage
