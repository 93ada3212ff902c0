"""What lies between the projections of latent attention and attention: norm of latents, rotary, store in the cache.

    q [T, heads, rope]                    -> rotated, to the last elements of the absorbed queries
    latent [T, rank + rope]  first part   -> normalised  ┐ stored in the paged cache,
                             last part    -> rotated     ┘ [num_blocks, block_size, 1, rank + rope]

Rotary embedding turns neighbours, elements 2i and 2i + 1, by the i-th angle, as in DeepSeek. Here the results are
stored with the first elements of all pairs before the second ones, in queries and keys alike: their products stay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.launch import Launcher
from kernels.norm import rms_norm_reference
from kernels.rotary import rotary_reference
from kernels.runtime import Value, constexpr, next_power_of_2, runs_triton, tl, triton


def latent_store(
    q: Tensor,
    latent: Tensor,
    weight: Tensor,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    out: Tensor,
) -> None:
    """Rotate q, [T, heads, rope], into the last elements of out, [T, heads, rank + rope]; normalise and rotate latents,
    [T, rank + rope], and store them in the cache.

    weight: [rank] of the norm. cos_sin, positions: as in `kernels.rotary.rotary_reference`. slot_mapping: int64[T]; -1
    stores nothing. The last dimension of all is contiguous; other strides are any.
    """
    store = latent_store_triton if runs_triton(q) else latent_store_reference
    store(q, latent, weight, eps, cos_sin, positions, cache, slot_mapping, out)


def latent_store_reference(
    q: Tensor,
    latent: Tensor,
    weight: Tensor,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    out: Tensor,
) -> None:
    """PyTorch version of `latent_store`; looks at the slots on the host."""
    rank = weight.shape[0]
    q, key = (x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2) for x in (q, latent[:, None, rank:]))
    q, key = rotary_reference(q, key, cos_sin, positions)
    out[..., rank:] = q
    rows = torch.cat((rms_norm_reference(latent[:, :rank], weight, eps), key[:, 0]), -1).to(cache.dtype)
    kept = (slot_mapping >= 0).nonzero().squeeze(1)
    cache.view(-1, cache.shape[-1]).index_copy_(0, slot_mapping[kept], rows[kept])


@triton.jit
def turn_pairs(pairs_ptr: Value, out_ptr: Value, mask: Value, cos: Value, sin: Value, half: constexpr) -> None:
    """Turn pairs of neighbours, and store their first elements at out_ptr and the second ones `half` elements later."""
    first = tl.load(pairs_ptr, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(pairs_ptr + 1, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr, (first * cos - second * sin).to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(out_ptr + half, (second * cos + first * sin).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def latent_store_kernel(
    q_ptr: Value,
    latent_ptr: Value,
    weight_ptr: Value,
    cos_sin_ptr: Value,
    positions_ptr: Value,
    slots_ptr: Value,
    cache_ptr: Value,
    out_ptr: Value,
    q_stride: Value,
    head_stride: Value,
    latent_stride: Value,
    eps: Value,
    heads: constexpr,
    rank: constexpr,
    half: constexpr,
    block_h: constexpr,
    block_r: constexpr,
    block_d: constexpr,
) -> None:
    """One program handles one token."""
    token = tl.program_id(0).to(tl.int64)
    width: constexpr = rank + 2 * half
    dim = tl.arange(0, block_d)[None, :]
    angles_ptr = cos_sin_ptr + tl.load(positions_ptr + token) * (2 * half) + dim
    cos = tl.load(angles_ptr, mask=dim < half, other=0.0)
    sin = tl.load(angles_ptr + half, mask=dim < half, other=0.0)
    head = tl.arange(0, block_h)[:, None]
    mask = (head < heads) & (dim < half)
    row_ptr = out_ptr + (token * heads + head) * width + rank + dim
    turn_pairs(q_ptr + token * q_stride + head * head_stride + 2 * dim, row_ptr, mask, cos, sin, half)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        latent_ptr += token * latent_stride
        cache_ptr += slot * width
        columns = tl.arange(0, block_r)
        x = tl.load(latent_ptr + columns, mask=columns < rank, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + columns, mask=columns < rank, other=0.0).to(tl.float32)
        normed = x * (1.0 / tl.sqrt(tl.sum(x * x, axis=0) / rank + eps)) * weight
        tl.store(cache_ptr + columns, normed.to(cache_ptr.dtype.element_ty), mask=columns < rank)
        turn_pairs(latent_ptr + rank + 2 * dim, cache_ptr + rank + dim, dim < half, cos, sin, half)


launch_latent_store = Launcher(latent_store_kernel)


def latent_store_triton(
    q: Tensor,
    latent: Tensor,
    weight: Tensor,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    out: Tensor,
) -> None:
    """Triton version of `latent_store`; out is contiguous."""
    (num_tokens, heads, rope), rank = q.shape, weight.shape[0]
    if num_tokens == 0:
        return
    launch_latent_store(
        (num_tokens,), q, latent, weight, cos_sin, positions, slot_mapping, cache, out, q.stride(0), q.stride(1),
        latent.stride(0), eps,
        heads=heads, rank=rank, half=rope // 2, block_h=next_power_of_2(heads), block_r=next_power_of_2(rank),
        block_d=next_power_of_2(rope // 2), num_warps=4,
    )  # fmt: skip
