"""The product of each token with the matrices of its experts, in the tiles of `kernels.experts.moe_routing`.

Scales and quantised inputs of weights in float8 (e4m3) are those of `kernels.linear.fp8_numbers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor

from kernels.experts.moe_routing import Routing
from kernels.launch import Launcher
from kernels.linear.fp8_gemm import inner_block, load_inputs, load_weights, scaled_product
from kernels.linear.fp8_linear import fp8_linear_reference, multiplies_float8
from kernels.linear.fp8_numbers import Block, quantize_tokens
from kernels.runtime import INTERPRETED, Value, ceil_div, constexpr, tl, triton


@dataclass(frozen=True)
class Fp8Stack:
    """A matrix per expert, each quantised as `quantize_weight` does it."""

    weight: Tensor
    """e4m3[E, N, K]."""
    scales: Tensor
    """float32[E, ceil(N / rows), ceil(K / columns)]."""
    block: Block
    """Rows and columns that share a scale."""

    @property
    def shape(self) -> torch.Size:
        return self.weight.shape

    def linear_reference(self, x: Tensor, expert: int) -> Tensor:
        """The product of inputs `[T, K]` with the matrix of one expert, in PyTorch; quantises no inputs."""
        return fp8_linear_reference(x, self.weight[expert], self.scales[expert], self.block)


ExpertWeights: TypeAlias = Tensor | Fp8Stack


@triton.jit
def plain_product(
    x_rows: Value,
    weight_rows: Value,
    row_mask: Value,
    k_size: constexpr,
    block_m: constexpr,
    block_n: constexpr,
    block_k: constexpr,
    interpreted: constexpr,
) -> Value:
    """As `scaled_product`, of rows of one dtype without scales."""
    inner = tl.arange(0, block_k)
    x_ptrs, w_ptrs = x_rows[:, None] + inner[None, :], weight_rows[None, :] + inner[:, None]
    acc = tl.zeros([block_m, block_n], tl.float32)
    for first in range(0, k_size, block_k):
        x = load_inputs(x_ptrs, row_mask, first, inner, k_size, block_k)
        w = load_weights(w_ptrs, first, inner, k_size, block_k)
        if interpreted:
            x, w = x.to(tl.float32), w.to(tl.float32)
        acc = tl.dot(x, w, acc=acc, input_precision="tf32x3")
    return acc


@triton.jit
def grouped_gemm_kernel(
    x_ptr: Value,
    x_scales_ptr: Value,
    weight_ptr: Value,
    scales_ptr: Value,
    out_ptr: Value,
    order_ptr: Value,
    tile_experts_ptr: Value,
    tile_starts_ptr: Value,
    expert_ends_ptr: Value,
    pair_weights_ptr: Value,
    bias_ptr: Value,
    x_divisor: constexpr,
    num_experts: constexpr,
    n_size: constexpr,
    k_size: constexpr,
    scale_rows: constexpr,
    scale_columns: constexpr,
    quantized_x: constexpr,
    weighted: constexpr,
    biased: constexpr,
    block_m: constexpr,
    block_n: constexpr,
    block_k: constexpr,
    interpreted: constexpr,
) -> None:
    """One program computes out[pair] = x[pair // x_divisor] @ weight[expert].T for one tile and block_n columns.

    `biased` adds the expert's bias, then `weighted` multiplies each row by the router's weight of its pair. Weights and
    inputs with scales are as `scaled_product` takes them; scale_columns is 0 for weights without scales.
    """
    tile = tl.program_id(1)
    expert = tl.load(tile_experts_ptr + tile).to(tl.int64)
    if expert >= num_experts:
        return
    places = tl.load(tile_starts_ptr + tile) + tl.arange(0, block_m)
    row_mask = places < tl.load(expert_ends_ptr + expert)
    pairs = tl.load(order_ptr + places, mask=row_mask, other=0).to(tl.int64)
    rows = pairs // x_divisor
    first_column = tl.program_id(0) * block_n
    columns = first_column + tl.arange(0, block_n)
    column_mask = columns < n_size
    # Columns beyond the last are computed as the last, and not stored.
    known_columns = columns if n_size % block_n == 0 else tl.minimum(columns, n_size - 1)
    x_rows, weight_rows = x_ptr + rows * k_size, weight_ptr + (expert * n_size + known_columns) * k_size
    if scale_columns == 0:
        acc = plain_product(x_rows, weight_rows, row_mask, k_size, block_m, block_n, block_k, interpreted)
    else:
        num_groups = (k_size + scale_columns - 1) // scale_columns
        scales = scales_ptr + expert * ((n_size + scale_rows - 1) // scale_rows) * num_groups
        one_scale: constexpr = scale_rows % block_n == 0
        scaled_rows = first_column if one_scale else known_columns
        acc = scaled_product(
            x_rows, x_scales_ptr + rows * num_groups, weight_rows, scales + scaled_rows // scale_rows * num_groups,
            row_mask, k_size, scale_columns, quantized_x, one_scale, block_m, block_n, block_k, interpreted,
        )  # fmt: skip
    if biased:
        acc += tl.load(bias_ptr + expert * n_size + columns, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    if weighted:
        acc *= tl.load(pair_weights_ptr + pairs, mask=row_mask, other=0.0)[:, None]
    mask = row_mask[:, None] & column_mask[None, :]
    tl.store(out_ptr + pairs[:, None] * n_size + columns[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


launch_grouped_gemm = Launcher(grouped_gemm_kernel)


def expert_tile(block_m: int, element_bytes: int, is_hopper: bool) -> tuple[int, int, int]:
    """(block_n, num_warps, num_stages) for tiles of block_m rows of inputs with `element_bytes`.

    H100: 256 columns take 15 % less time than 128 for 128 rows, and in float8 128 columns 11 to 24 % less than 64 for
    64 rows.
    """
    if block_m == 128:
        return (256, 8, 3) if is_hopper else (128, 4, 3)
    return (128 if block_m == 64 and element_bytes == 1 else 64), 4, 3


@cache
def _is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def grouped_product(
    x: Tensor,
    experts: ExpertWeights,
    out: Tensor,
    routing: Routing,
    x_divisor: int,
    weighted: bool,
    block_m: int,
    bias: Tensor | None = None,
) -> None:
    """Write the product of each pair of a token and its expert to `out`, [pairs, N]; Triton.

    x: [pairs // x_divisor, K], contiguous. Where the experts are in float8 and the device multiplies float8, x is
    quantised first, a scale per row and `experts.block[1]` columns. `bias`, [E, N], is added; `weighted` multiplies
    each row by the router's weight of its pair.
    """
    num_experts, n_size, k_size = experts.shape
    scale_rows = scale_columns = 0
    is_quantized = isinstance(experts, Fp8Stack) and multiplies_float8(x.device)
    rows = x_scales = weight = scales = x
    if isinstance(experts, Fp8Stack):
        scale_rows, scale_columns = experts.block[0], min(experts.block[1], k_size)
        scales = x_scales = experts.scales
        if is_quantized:
            rows, x_scales = quantize_tokens(x, scale_columns)
        weight = experts.weight if is_quantized else experts.weight.view(torch.uint8)
        block_k = inner_block(scale_columns, rows.element_size())
    else:
        weight, block_k = experts, 64 if x.element_size() <= 2 else 32
    block_n, num_warps, num_stages = expert_tile(block_m, rows.element_size(), _is_hopper(x.device))
    launch_grouped_gemm(
        (ceil_div(n_size, block_n), routing.tile_experts.shape[0]),
        rows, x_scales, weight, scales, out, routing.order, routing.tile_experts, routing.tile_starts,
        routing.expert_ends, routing.weights, x if bias is None else bias,
        x_divisor=x_divisor, num_experts=num_experts, n_size=n_size, k_size=k_size, scale_rows=scale_rows,
        scale_columns=scale_columns, quantized_x=is_quantized, weighted=weighted, biased=bias is not None,
        block_m=block_m, block_n=block_n, block_k=block_k, interpreted=INTERPRETED, num_warps=num_warps,
        num_stages=num_stages,
    )  # fmt: skip
