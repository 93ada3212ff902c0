"""Rotary position embedding in the half-split layout of GPT-NeoX, Llama and Qwen (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.launch import Launcher
from kernels.runtime import Value, constexpr, next_power_of_2, runs_triton, tl, triton


def rotary(q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by the angles of their positions; returns new, contiguous (q, k).

    q: [T, heads, head_dim], k: [T, kv_heads, head_dim], last two dimensions contiguous, any stride between tokens.
    cos_sin: float32[max_pos, head_dim], the cosines of head_dim / 2 angles and then their sines.
    positions: int64[T], each below max_pos. Computed in float32, returned in the inputs' dtype.
    """
    return rotary_triton(q, k, cos_sin, positions) if runs_triton(q) else rotary_reference(q, k, cos_sin, positions)


def rotary_reference(q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch version of `rotary`."""
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).split(half, dim=-1)
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    wide = x.float()
    half = cos.shape[-1]
    first, second = wide[..., :half], wide[..., half:]
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin)
    return out.to(x.dtype)


@triton.jit
def rotate_heads(
    x_ptr: Value,
    out_ptr: Value,
    cos: Value,
    sin: Value,
    heads: constexpr,
    half: constexpr,
    block_h: constexpr,
    block_d: constexpr,
) -> None:
    """Rotate the [heads, 2 * half] elements at x_ptr by the angles of one position, given as `cos` and `sin`."""
    head, dim = tl.arange(0, block_h)[:, None], tl.arange(0, block_d)[None, :]
    mask = (head < heads) & (dim < half)
    offsets = head * (2 * half) + dim
    first = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + offsets + half, mask=mask, other=0.0).to(tl.float32)
    element_ty = out_ptr.dtype.element_ty
    tl.store(out_ptr + offsets, (first * cos - second * sin).to(element_ty), mask=mask)
    tl.store(out_ptr + offsets + half, (second * cos + first * sin).to(element_ty), mask=mask)


@triton.jit
def rotary_kernel(
    q_ptr: Value,
    k_ptr: Value,
    q_out_ptr: Value,
    k_out_ptr: Value,
    cos_sin_ptr: Value,
    positions_ptr: Value,
    q_stride: Value,
    k_stride: Value,
    heads: constexpr,
    kv_heads: constexpr,
    half: constexpr,
    block_h: constexpr,
    block_kv: constexpr,
    block_d: constexpr,
) -> None:
    """One program rotates all query and key heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + token)
    dim = tl.arange(0, block_d)
    angles_ptr = cos_sin_ptr + position * (2 * half) + dim
    cos = tl.load(angles_ptr, mask=dim < half, other=0.0)[None, :]
    sin = tl.load(angles_ptr + half, mask=dim < half, other=0.0)[None, :]
    q_out_ptr += token * (heads * half * 2)
    k_out_ptr += token * (kv_heads * half * 2)
    rotate_heads(q_ptr + token * q_stride, q_out_ptr, cos, sin, heads, half, block_h, block_d)
    rotate_heads(k_ptr + token * k_stride, k_out_ptr, cos, sin, kv_heads, half, block_kv, block_d)


launch_rotary = Launcher(rotary_kernel)


def rotary_triton(q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Triton version of `rotary`."""
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    num_tokens, heads, head_dim = q.shape
    if num_tokens:
        half = head_dim // 2
        launch_rotary(
            (num_tokens,),
            q,
            k,
            q_out,
            k_out,
            cos_sin,
            positions,
            q.stride(0),
            k.stride(0),
            heads=heads,
            kv_heads=k.shape[1],
            half=half,
            block_h=next_power_of_2(heads),
            block_kv=next_power_of_2(k.shape[1]),
            block_d=next_power_of_2(half),
            num_warps=4,
        )
    return q_out, k_out
