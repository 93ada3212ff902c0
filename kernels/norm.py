"""RMSNorm, alone and fused with the residual addition before it (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.launch import Launcher
from kernels.runtime import Value, ceil_div, constexpr, next_power_of_2, runs_triton, tl, triton


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    x: [T, H] or [T, heads, H], last dimension contiguous; weight: [H] -> the shape of x, contiguous, x's dtype.
    The mean and the scaling are in float32.
    """
    return rms_norm_triton(x, weight, eps) if runs_triton(x) else rms_norm_reference(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(RMSNorm of the sum, the sum) of `residual + x`, both new tensors [T, H].

    x, residual: [T, H] of one dtype; weight: [H]. The sum is rounded to that dtype before it is normalised, as in a
    model that adds and normalises in two steps.
    """
    if runs_triton(x):
        return add_rms_norm_triton(x, residual, weight, eps)
    return add_rms_norm_reference(x, residual, weight, eps)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """PyTorch version of `rms_norm`."""
    if x.dtype == torch.float32:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)
    wide = x.float()
    return functional.rms_norm(wide, (x.shape[-1],), weight.float(), eps).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """PyTorch version of `add_rms_norm`."""
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x_ptr: Value,
    weight_ptr: Value,
    out_ptr: Value,
    num_rows: Value,
    heads: Value,
    token_stride: Value,
    head_stride: Value,
    eps: Value,
    width: constexpr,
    block: constexpr,
    rows_per_program: constexpr,
) -> None:
    """One program normalises `rows_per_program` rows; row r is head r % heads of token r // heads."""
    rows = tl.program_id(0) * rows_per_program + tl.arange(0, rows_per_program)
    columns = tl.arange(0, block)
    mask = (rows < num_rows)[:, None] & (columns < width)[None, :]
    token = (rows // heads).to(tl.int64)
    starts = token * token_stride + (rows % heads) * head_stride
    x = tl.load(x_ptr + starts[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=columns < width, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / width + eps)
    normed = x * scale[:, None] * weight[None, :]
    places = rows.to(tl.int64)[:, None] * width + columns[None, :]
    tl.store(out_ptr + places, normed.to(out_ptr.dtype.element_ty), mask=mask)


launch_rms_norm = Launcher(rms_norm_kernel)


@triton.jit
def add_rms_norm_kernel(
    x_ptr: Value,
    residual_ptr: Value,
    weight_ptr: Value,
    out_ptr: Value,
    total_ptr: Value,
    x_stride: Value,
    residual_stride: Value,
    eps: Value,
    width: constexpr,
    block: constexpr,
) -> None:
    """One program adds and normalises one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    mask = columns < width
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * residual_stride + columns, mask=mask, other=0.0).to(tl.float32)
    rounded = (x + residual).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + row * width + columns, rounded, mask=mask)
    total = rounded.to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(total * total, axis=0) / width + eps)
    normed = total * scale * weight
    tl.store(out_ptr + row * width + columns, normed.to(out_ptr.dtype.element_ty), mask=mask)


launch_add_rms_norm = Launcher(add_rms_norm_kernel)


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Triton version of `rms_norm`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    heads, head_stride = (x.shape[1], x.stride(1)) if x.dim() == 3 else (1, 0)
    num_rows, width = x.shape[0] * heads, x.shape[-1]
    if num_rows == 0:
        return out
    block = next_power_of_2(width)
    rows_per_program = max(1, 1024 // block)
    launch_rms_norm(
        (ceil_div(num_rows, rows_per_program),),
        x,
        weight,
        out,
        num_rows,
        heads,
        x.stride(0),
        head_stride,
        eps,
        width=width,
        block=block,
        rows_per_program=rows_per_program,
        num_warps=_norm_warps(block * rows_per_program),
    )
    return out


def add_rms_norm_triton(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Triton version of `add_rms_norm`."""
    out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    if x.shape[0] == 0:
        return out, total
    width = x.shape[1]
    block = next_power_of_2(width)
    strides = (x.stride(0), residual.stride(0))
    launch_add_rms_norm(
        (x.shape[0],),
        x,
        residual,
        weight,
        out,
        total,
        *strides,
        eps,
        width=width,
        block=block,
        num_warps=_norm_warps(block),
    )
    return out, total


def _norm_warps(elements: int) -> int:
    """Warps of a program with `elements` elements: one per 512 elements (16 per thread), at least 2, at most 16."""
    return min(max(elements // 512, 2), 16)
