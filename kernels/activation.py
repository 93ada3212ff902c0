"""The gated activation of Llama-like feed-forward layers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.launch import Launcher
from kernels.runtime import Value, ceil_div, constexpr, next_power_of_2, runs_triton, tl, triton


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(x[:, :I]) * x[:, I:].

    x: [T, 2 * I], contiguous, gate half first -> [T, I] of x's dtype.
    """
    return silu_and_mul_triton(x) if runs_triton(x) else silu_and_mul_reference(x)


def silu_and_mul_reference(x: Tensor) -> Tensor:
    """PyTorch version of `silu_and_mul`."""
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


@triton.jit
def silu_and_mul_kernel(x_ptr: Value, out_ptr: Value, width: constexpr, block: constexpr) -> None:
    """One program computes `block` columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    mask = columns < width
    row_ptr = x_ptr + token * (2 * width) + columns
    gate = tl.load(row_ptr, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(row_ptr + width, mask=mask, other=0.0).to(tl.float32)
    activated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + token * width + columns, activated.to(out_ptr.dtype.element_ty), mask=mask)


launch_silu_and_mul = Launcher(silu_and_mul_kernel)


def silu_and_mul_triton(x: Tensor) -> Tensor:
    """Triton version of `silu_and_mul`."""
    num_tokens, width = x.shape[0], x.shape[1] // 2
    out = torch.empty(num_tokens, width, dtype=x.dtype, device=x.device)
    if num_tokens:
        block = min(next_power_of_2(width), 1024)
        launch_silu_and_mul((num_tokens, ceil_div(width, block)), x, out, width=width, block=block, num_warps=4)
    return out
