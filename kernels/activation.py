"""The gated activations of feed-forward layers: Llama's, and that of gpt-oss' experts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.launch import Launcher
from kernels.runtime import Value, ceil_div, constexpr, next_power_of_2, runs_triton, tl, triton


class Clamp(NamedTuple):
    """gpt-oss' activation: (clamp(up, ±limit) + 1) * g * sigmoid(alpha * g) of g = min(gate, limit)."""

    alpha: float
    limit: float


def silu_and_mul(x: Tensor, clamp: Clamp | None = None) -> Tensor:
    """silu(x[:, :I]) * x[:, I:], or the activation of `clamp`.

    x: [T, 2 * I], contiguous, gate half first -> [T, I] of x's dtype.
    """
    return silu_and_mul_triton(x, clamp) if runs_triton(x) else silu_and_mul_reference(x, clamp)


def silu_and_mul_reference(x: Tensor, clamp: Clamp | None = None) -> Tensor:
    """PyTorch version of `silu_and_mul`."""
    gate, up = x.chunk(2, dim=-1)
    if clamp is None:
        return functional.silu(gate).mul_(up)
    gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
    return (up + 1) * (gate * (gate * clamp.alpha).sigmoid())


@triton.jit
def silu_and_mul_kernel(
    x_ptr: Value, out_ptr: Value, width: constexpr, block: constexpr, alpha: constexpr, limit: constexpr
) -> None:
    """One program computes `block` columns of one token; a limit of 0 is that of no clamp."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    mask = columns < width
    row_ptr = x_ptr + token * (2 * width) + columns
    gate = tl.load(row_ptr, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(row_ptr + width, mask=mask, other=0.0).to(tl.float32)
    if limit > 0:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit) + 1.0
    activated = gate / (1.0 + tl.exp(-gate * alpha)) * up
    tl.store(out_ptr + token * width + columns, activated.to(out_ptr.dtype.element_ty), mask=mask)


launch_silu_and_mul = Launcher(silu_and_mul_kernel)


def silu_and_mul_triton(x: Tensor, clamp: Clamp | None = None) -> Tensor:
    """Triton version of `silu_and_mul`."""
    num_tokens, width = x.shape[0], x.shape[1] // 2
    out = torch.empty(num_tokens, width, dtype=x.dtype, device=x.device)
    if num_tokens:
        block = min(next_power_of_2(width), 1024)
        alpha, limit = clamp or (1.0, 0.0)
        launch_silu_and_mul(
            (num_tokens, ceil_div(width, block)), x, out, width=width, block=block, alpha=alpha, limit=limit,
            num_warps=4,
        )  # fmt: skip
    return out
