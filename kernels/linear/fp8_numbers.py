"""Numbers in float8 (e4m3) with scales: quantising weights by blocks, and inputs by tokens and groups of columns.

A block of weights `(rows, columns)` shares a float32 scale: weight = float8 number * scale. Blocks at the right and the
lower edge may be smaller. (1, K) is a scale per output channel of a [N, K] matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cache.kv_store import FP8_DTYPE, FP8_MAX
from kernels.launch import Launcher
from kernels.runtime import Value, ceil_div, constexpr, next_power_of_2, tl, triton

Block = tuple[int, int]

_SMALLEST_SCALE = 1e-12  # of an input, so that zeros are divided by no zero
_QUANTIZE_BLOCK = 2048


def quantize_weight(weight: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """(e4m3[N, K], float32 scales[ceil(N / rows), ceil(K / columns)]) of a matrix [N, K] of any float dtype.

    A scale maps the largest absolute number of its block to 448, the largest e4m3 number.
    """
    (n, k), (rows, columns) = weight.shape, block
    down, right = ceil_div(n, rows), ceil_div(k, columns)
    padded = functional.pad(weight.float(), (0, right * columns - k, 0, down * rows - n))
    largest = padded.abs().view(down, rows, right, columns).amax(dim=(1, 3))
    scales = (largest / FP8_MAX).clamp_(min=torch.finfo(torch.float32).tiny)
    scaled = weight.float() / spread_scales(scales, block, n, k)
    return scaled.clamp_(-FP8_MAX, FP8_MAX).to(FP8_DTYPE), scales


def spread_scales(scales: Tensor, block: Block, n: int, k: int) -> Tensor:
    """The scale of each weight, [N, K], or [N, 1] where all columns of a row have the same one."""
    rows = scales.repeat_interleave(block[0], dim=0)[:n] if block[0] > 1 else scales
    return rows if scales.shape[1] == 1 else rows.repeat_interleave(block[1], dim=1)[:, :k]


def dequantize_weight(weight: Tensor, scales: Tensor, block: Block) -> Tensor:
    """float32[N, K] of e4m3[N, K]."""
    return weight.float() * spread_scales(scales, block, *weight.shape)


def quantize_tokens_reference(x: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """PyTorch version of `quantize_tokens`."""
    tokens, k = x.shape
    right = ceil_div(k, columns)
    padded = functional.pad(x.float(), (0, right * columns - k)).view(tokens, right, columns)
    scales = padded.abs().amax(dim=2).clamp_(min=_SMALLEST_SCALE) / FP8_MAX
    scaled = (padded / scales.unsqueeze(2)).view(tokens, -1)[:, :k]
    return scaled.clamp(-FP8_MAX, FP8_MAX).to(FP8_DTYPE).contiguous(), scales


@triton.jit(do_not_specialize=["group_stride"])
def quantize_tokens_kernel(
    x_ptr: Value,
    out_ptr: Value,
    scales_ptr: Value,
    x_stride: Value,
    token_stride: Value,
    group_stride: Value,
    k_size: constexpr,
    columns: constexpr,
    block: constexpr,
    groups: constexpr,
    smallest: constexpr,
    fp8_max: constexpr,
) -> None:
    """One program quantises `groups` times `columns` inputs of one token."""
    token = tl.program_id(0).to(tl.int64)
    group, inner = tl.program_id(1) * groups + tl.arange(0, groups), tl.arange(0, block)
    places = group[:, None] * columns + inner[None, :]
    mask = (inner < columns)[None, :] & (places < k_size)
    x = tl.load(x_ptr + token * x_stride + places, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=1), smallest) / fp8_max
    scale_places = token * token_stride + group.to(tl.int64) * group_stride
    tl.store(scales_ptr + scale_places, scale, mask=group * columns < k_size)
    scaled = tl.minimum(tl.maximum(x / scale[:, None], -fp8_max), fp8_max)
    tl.store(out_ptr + token * k_size + places, scaled.to(out_ptr.dtype.element_ty), mask=mask)


launch_quantize_tokens = Launcher(quantize_tokens_kernel)


def quantize_tokens(x: Tensor, columns: int, *, by_groups: bool = False, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """(e4m3[T, K], float32 scales[T, ceil(K / columns)]) of inputs [T, K]; Triton.

    With `by_groups` the scales of a group of columns follow one another in memory, not those of a token. Both get rows
    up to a `multiple`, uninitialised.
    """
    tokens, k = x.shape
    columns = min(columns, k)
    num_groups = ceil_div(k, columns)
    num_rows = ceil_div(tokens, multiple) * multiple
    out = torch.empty(num_rows, k, dtype=FP8_DTYPE, device=x.device)
    shape = (num_groups, num_rows) if by_groups else (num_rows, num_groups)
    scales = torch.empty(shape, dtype=torch.float32, device=x.device)
    scales = scales.t() if by_groups else scales
    if tokens:
        block = next_power_of_2(columns)
        groups = max(1, min(next_power_of_2(num_groups), _QUANTIZE_BLOCK // block))
        launch_quantize_tokens(
            (tokens, ceil_div(num_groups, groups)),
            x,
            out,
            scales,
            x.stride(0),
            scales.stride(0),
            scales.stride(1),
            k_size=k,
            columns=columns,
            block=block,
            groups=groups,
            smallest=_SMALLEST_SCALE,
            fp8_max=FP8_MAX,
            num_warps=min(max(groups * block // 512, 1), 16),
        )
    return out, scales
