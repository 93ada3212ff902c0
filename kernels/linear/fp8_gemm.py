"""The product of inputs and weights in float8 (e4m3), with the scales of `kernels.linear.fp8_numbers`, in Triton."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.launch import Launcher
from kernels.linear.fp8_numbers import Block
from kernels.runtime import INTERPRETED, Value, ceil_div, constexpr, next_power_of_2, tl, triton

_TILES_DOWN = 16


@triton.jit
def e4m3_bits_to_float16(bits: Value) -> Value:
    """The numbers times 2^-8 of the bits (uint8) of e4m3 numbers, exactly; NaN becomes a number."""
    wide = bits.to(tl.uint16)
    return (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)


@triton.jit
def load_inputs(
    x_ptrs: Value, row_mask: Value, first: Value, inner: Value, k_size: constexpr, block_k: constexpr
) -> Value:
    """Columns from `first` on of rows of k_size inputs; 0 where a row is none, and beyond k_size."""
    if k_size % block_k == 0:
        return tl.load(x_ptrs + first, mask=row_mask[:, None], other=0.0)
    return tl.load(x_ptrs + first, mask=row_mask[:, None] & (inner < k_size - first)[None, :], other=0.0)


@triton.jit
def load_weights(w_ptrs: Value, first: Value, inner: Value, k_size: constexpr, block_k: constexpr) -> Value:
    """Columns from `first` on of rows of k_size weights, transposed; 0 beyond k_size."""
    if k_size % block_k == 0:
        return tl.load(w_ptrs + first)
    return tl.load(w_ptrs + first, mask=(inner < k_size - first)[:, None], other=0.0)


@triton.jit
def scaled_product(
    x_rows: Value,
    x_scale_rows: Value,
    weight_rows: Value,
    scale_rows: Value,
    row_mask: Value,
    k_size: constexpr,
    scale_columns: constexpr,
    quantized_x: constexpr,
    one_scale: constexpr,
    block_m: constexpr,
    block_n: constexpr,
    block_k: constexpr,
    interpreted: constexpr,
) -> Value:
    """float32[block_m, block_n]: the product of rows of inputs and rows of float8 weights, with their scales.

    The first four arguments point to the first element of each row, scale_rows of a single one where all rows of
    weights share it (`one_scale`). row_mask: which rows of inputs there are. With `quantized_x`, inputs and weights are
    e4m3; otherwise inputs are not quantised and weights are the bits of e4m3. `scale_columns` is a multiple of block_k,
    or k_size.
    """
    inner = tl.arange(0, block_k)
    x_ptrs = x_rows[:, None] + inner[None, :]
    w_ptrs = weight_rows[None, :] + inner[:, None]
    num_groups = (k_size + scale_columns - 1) // scale_columns
    acc = tl.zeros([block_m, block_n], tl.float32)
    for first in range(0, k_size, block_k):
        x = load_inputs(x_ptrs, row_mask, first, inner, k_size, block_k)
        w = load_weights(w_ptrs, first, inner, k_size, block_k)
        if not quantized_x:
            w = e4m3_bits_to_float16(w).to(x.dtype)
        if interpreted:
            x, w = x.to(tl.float32), w.to(tl.float32)
        if quantized_x or num_groups > 1:  # float8 products are added up outside the unit, which adds imprecisely
            product = tl.dot(x, w, input_precision="tf32x3")
            if num_groups > 1:
                group = first // scale_columns
                product = _with_scales(product, x_scale_rows, scale_rows, group, quantized_x, one_scale)
            acc += product
        else:
            acc = tl.dot(x, w, acc=acc, input_precision="tf32x3")
    if num_groups == 1:
        acc = _with_scales(acc, x_scale_rows, scale_rows, 0, quantized_x, one_scale)
    if not quantized_x:
        acc *= 256.0
    return acc


@triton.jit
def _with_scales(
    product: Value,
    x_scale_rows: Value,
    scale_rows: Value,
    group: Value,
    quantized_x: constexpr,
    one_scale: constexpr,
) -> Value:
    """A product times the scales of a group of columns."""
    scale = tl.load(scale_rows + group)
    if not one_scale:
        product *= scale[None, :]
    if quantized_x:
        x_scale = tl.load(x_scale_rows + group)
        if one_scale:
            x_scale *= scale
        product *= x_scale[:, None]
    elif one_scale:
        product *= scale
    return product


@triton.jit(do_not_specialize=["num_tokens"])
def fp8_gemm_kernel(
    x_ptr: Value,
    x_scales_ptr: Value,
    weight_ptr: Value,
    scales_ptr: Value,
    out_ptr: Value,
    num_tokens: Value,
    x_stride: Value,
    n_size: constexpr,
    k_size: constexpr,
    scale_rows: constexpr,
    scale_columns: constexpr,
    quantized_x: constexpr,
    block_m: constexpr,
    block_n: constexpr,
    block_k: constexpr,
    tiles_down: constexpr,
    interpreted: constexpr,
) -> None:
    """One program computes block_m tokens of block_n outputs; see `scaled_product`.

    Programs that run at the same time share tokens and weights, which then come from the L2 cache: their order goes
    down `tiles_down` tiles of tokens before the next tile of outputs.
    """
    num_right, num_down = (n_size + block_n - 1) // block_n, (num_tokens + block_m - 1) // block_m
    band, place = tl.program_id(0) // (tiles_down * num_right), tl.program_id(0) % (tiles_down * num_right)
    height = tl.minimum(num_down - band * tiles_down, tiles_down)
    tokens = (band * tiles_down + place % height) * block_m + tl.arange(0, block_m).to(tl.int64)
    first_output = place // height * block_n
    outputs = first_output + tl.arange(0, block_n)
    num_groups = (k_size + scale_columns - 1) // scale_columns
    # Outputs beyond the last are computed as the last, and not stored.
    known_tokens = tl.minimum(tokens, num_tokens - 1)
    known_outputs = outputs if n_size % block_n == 0 else tl.minimum(outputs, n_size - 1)
    one_scale: constexpr = scale_rows % block_n == 0
    scaled_rows = first_output if one_scale else known_outputs
    acc = scaled_product(
        x_ptr + known_tokens * x_stride, x_scales_ptr + known_tokens * num_groups,
        weight_ptr + known_outputs.to(tl.int64) * k_size, scales_ptr + scaled_rows // scale_rows * num_groups,
        tokens < num_tokens, k_size, scale_columns, quantized_x, one_scale, block_m, block_n, block_k, interpreted,
    )  # fmt: skip
    mask = (tokens < num_tokens)[:, None] & (outputs < n_size)[None, :]
    tl.store(out_ptr + tokens[:, None] * n_size + outputs[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


launch_fp8_gemm = Launcher(fp8_gemm_kernel)


class Tile(NamedTuple):
    """What a program multiplies at a time, its warps, and the stages of its pipeline."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def gemm_tile(num_tokens: int, scale_columns: int, element_bytes: int) -> Tile:
    """The tile for so many tokens of inputs with `element_bytes`.

    Few tokens in float8 wait for weights: many small programs with more loads in flight (H100: 20 to 25 % less time
    than 64 columns and 3 stages). From 512 on, 128 columns share what is loaded (H100: 8 to 22 % less time).
    """
    block_m = min(max(next_power_of_2(max(1, num_tokens)), 16), 64)
    block_n, num_stages = 64, 3
    if element_bytes == 1 and num_tokens <= 64:
        block_n, num_stages = 32, 5
    elif element_bytes == 1 and num_tokens >= 512:
        block_n = 128
    return Tile(block_m, block_n, inner_block(scale_columns, element_bytes), 4, num_stages)


def inner_block(scale_columns: int, element_bytes: int) -> int:
    """Columns that a program multiplies at a time: 128 bytes of a row, and no more than share a scale."""
    return min({1: 128, 2: 64, 4: 32}[element_bytes], next_power_of_2(scale_columns))


def fp8_gemm(x: Tensor, x_scales: Tensor | None, weight: Tensor, scales: Tensor, block: Block, out: Tensor) -> None:
    """Write `x @ weight.T` to `out`, [T, N]; x is e4m3 with `x_scales`, or of another dtype without. Triton."""
    num_tokens, (n, k) = x.shape[0], weight.shape
    columns = min(block[1], k)
    tile = gemm_tile(num_tokens, columns, x.element_size())
    launch_fp8_gemm(
        (ceil_div(n, tile.block_n) * ceil_div(num_tokens, tile.block_m),),
        x,
        scales if x_scales is None else x_scales,
        weight if x_scales is not None else weight.view(torch.uint8),
        scales,
        out,
        num_tokens,
        x.stride(0),
        n_size=n,
        k_size=k,
        scale_rows=block[0],
        scale_columns=columns,
        quantized_x=x_scales is not None,
        block_m=tile.block_m,
        block_n=tile.block_n,
        block_k=tile.block_k,
        tiles_down=_TILES_DOWN,
        interpreted=INTERPRETED,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
