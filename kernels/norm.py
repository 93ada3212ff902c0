"""RMSNorm, alone and fused with the residual addition before it (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.launch import Launcher
from kernels.runtime import Value, constexpr, next_power_of_2, runs_triton, tl, triton


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    x: [T, H], last dimension contiguous; weight: [H] -> [T, H], contiguous, x's dtype.
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
    """PyTorch version of `rms_norm`, for x of any shape [..., H]."""
    if x.dtype == torch.float32:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)
    wide = x.float()
    return functional.rms_norm(wide, (x.shape[-1],), weight.float(), eps).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """PyTorch version of `add_rms_norm`."""
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


@triton.jit
def rms_norm_kernel(
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
    added: constexpr,
) -> None:
    """One program normalises one row, to which the residual is `added` first."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    mask = columns < width
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    if added:
        residual = tl.load(residual_ptr + row * residual_stride + columns, mask=mask, other=0.0).to(tl.float32)
        rounded = (x + residual).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row * width + columns, rounded, mask=mask)
        x = rounded.to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    normed = x * (1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps)) * weight
    tl.store(out_ptr + row * width + columns, normed.to(out_ptr.dtype.element_ty), mask=mask)


launch_rms_norm = Launcher(rms_norm_kernel)


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Triton version of `rms_norm`."""
    return _launch(x, None, weight, eps)[0]


def add_rms_norm_triton(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Triton version of `add_rms_norm`."""
    return _launch(x, residual, weight, eps)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(RMSNorm, what was normalised); without a residual that is x."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(out)
    num_rows, width = x.shape
    other, block = x if residual is None else residual, next_power_of_2(width)
    if num_rows:
        launch_rms_norm(
            (num_rows,), x, other, weight, out, total, x.stride(0), other.stride(0), eps,
            width=width, block=block, added=residual is not None,
            num_warps=min(max(block // 512, 2), 16),  # one per 512 elements, 16 per thread
        )  # fmt: skip
    return out, total
