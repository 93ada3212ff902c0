"""Experts with float8 (e4m3) weights: a stack of matrices, and the product of each token with those of its experts.

Scales and quantised inputs are those of `kernels.linear.fp8_linear`; the product runs in the tiles of
`kernels.experts.moe_routing`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.experts.moe_routing import Routing
from kernels.launch import Launcher
from kernels.linear.fp8_linear import (
    Block,
    fp8_linear_reference,
    inner_block,
    multiplies_float8,
    quantize_tokens,
    scaled_product,
)
from kernels.runtime import INTERPRETED, Value, ceil_div, constexpr, tl, triton

_BLOCK_N = 64


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


@triton.jit
def fp8_grouped_gemm_kernel(
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
    x_divisor: constexpr,
    num_experts: constexpr,
    n_size: constexpr,
    k_size: constexpr,
    scale_rows: constexpr,
    scale_columns: constexpr,
    quantized_x: constexpr,
    weighted: constexpr,
    block_m: constexpr,
    block_n: constexpr,
    block_k: constexpr,
    interpreted: constexpr,
) -> None:
    """As `kernels.experts.moe.grouped_gemm_kernel`, with weights and inputs as `scaled_product` takes them."""
    tile = tl.program_id(1)
    expert = tl.load(tile_experts_ptr + tile).to(tl.int64)
    if expert >= num_experts:
        return
    places = tl.load(tile_starts_ptr + tile) + tl.arange(0, block_m)
    row_mask = places < tl.load(expert_ends_ptr + expert)
    pairs = tl.load(order_ptr + places, mask=row_mask, other=0).to(tl.int64)
    rows = pairs // x_divisor
    columns = tl.program_id(0) * block_n + tl.arange(0, block_n)
    column_mask = columns < n_size
    num_groups = (k_size + scale_columns - 1) // scale_columns
    scales = scales_ptr + expert * ((n_size + scale_rows - 1) // scale_rows) * num_groups
    acc = scaled_product(
        x_ptr + rows * k_size, x_scales_ptr + rows * num_groups, weight_ptr + (expert * n_size + columns) * k_size,
        scales + columns // scale_rows * num_groups, row_mask, column_mask, k_size, scale_columns, quantized_x,
        block_m, block_n, block_k, interpreted,
    )  # fmt: skip
    if weighted:
        acc *= tl.load(pair_weights_ptr + pairs, mask=row_mask, other=0.0)[:, None]
    mask = row_mask[:, None] & column_mask[None, :]
    tl.store(out_ptr + pairs[:, None] * n_size + columns[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


launch_fp8_grouped_gemm = Launcher(fp8_grouped_gemm_kernel)


def fp8_grouped_product(
    x: Tensor, experts: Fp8Stack, out: Tensor, routing: Routing, x_divisor: int, weighted: bool, block_m: int
) -> None:
    """Write the product of each pair of a token and its expert to `out`, [pairs, N]; Triton.

    x: [pairs // x_divisor, K], contiguous. Where the device multiplies float8, x is quantised first, a scale per row
    and `experts.block[1]` columns. `weighted` multiplies each row by the router's weight of its pair.
    """
    num_experts, n_size, k_size = experts.shape
    scale_columns = min(experts.block[1], k_size)
    is_quantized = multiplies_float8(x.device)
    rows, x_scales = quantize_tokens(x, scale_columns) if is_quantized else (x, experts.scales)
    launch_fp8_grouped_gemm(
        (ceil_div(n_size, _BLOCK_N), routing.tile_experts.shape[0]),
        rows,
        x_scales,
        experts.weight if is_quantized else experts.weight.view(torch.uint8),
        experts.scales,
        out,
        routing.order,
        routing.tile_experts,
        routing.tile_starts,
        routing.expert_ends,
        routing.weights,
        x_divisor=x_divisor,
        num_experts=num_experts,
        n_size=n_size,
        k_size=k_size,
        scale_rows=experts.block[0],
        scale_columns=scale_columns,
        quantized_x=is_quantized,
        weighted=weighted,
        block_m=block_m,
        block_n=_BLOCK_N,
        block_k=inner_block(scale_columns, rows.element_size()),
        interpreted=INTERPRETED,
        num_warps=4,
        num_stages=3,
    )
