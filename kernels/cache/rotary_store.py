"""What lies between the projection to q, k and v and attention, in one kernel: norms of q and k, rotary, KV store.

    qkv [T, heads + 2 * kv_heads, head_dim] -> q, normalised and rotated      -> returned
                                               k, normalised and rotated, v   -> stored in the paged cache

The kernel rounds to the dtype of qkv wherever the references (`norm`, `rotary`, `kv_store`) do.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.cache.kv_integers import BITS, LARGEST, LARGEST_SCALE, SMALLEST_SCALE, find_row, round_to_integers
from kernels.cache.kv_store import FP8_MAX, store_kv_reference
from kernels.cache.layer_kv import LayerKV
from kernels.launch import Launcher
from kernels.norm import rms_norm_reference
from kernels.rotary import rotary_reference
from kernels.runtime import Value, constexpr, next_power_of_2, tl, triton


class HeadNorms(NamedTuple):
    """RMSNorm weights of the heads of q and of k, each [head_dim], and the epsilon of both."""

    q: Tensor
    k: Tensor
    eps: float


def rotary_store_reference(
    qkv: Tensor,
    norms: HeadNorms | None,
    cos_sin: Tensor,
    positions: Tensor,
    kv: LayerKV,
    slot_mapping: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """PyTorch version of `rotary_store`."""
    kv_heads = kv.keys.shape[2]
    q, k, v = qkv.split([qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if norms is not None:
        q, k = rms_norm_reference(q, norms.q, norms.eps), rms_norm_reference(k, norms.k, norms.eps)
    q, k = rotary_reference(q, k, cos_sin, positions)
    store_kv_reference(k, v, kv, slot_mapping)
    return q if out is None else out.copy_(q)


@triton.jit
def rotated_heads(
    x_ptr: Value,
    weight_ptr: Value,
    cos: Value,
    sin: Value,
    eps: Value,
    heads: constexpr,
    half: constexpr,
    block_h: constexpr,
    block_d: constexpr,
    normed: constexpr,
) -> Value:
    """The halves, float32[block_h, block_d] each, of the [heads, 2 * half] elements at x_ptr, after norm and rotary."""
    head, dim = tl.arange(0, block_h)[:, None], tl.arange(0, block_d)[None, :]
    mask = (head < heads) & (dim < half)
    element_ty = x_ptr.dtype.element_ty
    first = tl.load(x_ptr + head * (2 * half) + dim, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + head * (2 * half) + half + dim, mask=mask, other=0.0).to(tl.float32)
    if normed:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        factor = (1.0 / tl.sqrt(squares / (2 * half) + eps))[:, None]
        first_weight = tl.load(weight_ptr + dim, mask=dim < half, other=0.0).to(tl.float32)
        second_weight = tl.load(weight_ptr + half + dim, mask=dim < half, other=0.0).to(tl.float32)
        first = (first * factor * first_weight).to(element_ty).to(tl.float32)
        second = (second * factor * second_weight).to(element_ty).to(tl.float32)
    low = (first * cos - second * sin).to(element_ty).to(tl.float32)
    high = (second * cos + first * sin).to(element_ty).to(tl.float32)
    return low, high


@triton.jit
def store_head(
    low: Value,
    high: Value,
    cache_ptr: Value,
    slot: Value,
    kv_head: Value,
    scale_ptr: Value,
    kv_heads: constexpr,
    half: constexpr,
    block_d: constexpr,
    block_size: constexpr,
    quantized: constexpr,
    fp8_max: constexpr,
    bits: constexpr,
    largest: constexpr,
    smallest_scale: constexpr,
    largest_scale: constexpr,
) -> None:
    """Store one row of a cache, whose halves are float32[1, block_d] each; elements from `half` on are zeros."""
    dim = tl.arange(0, block_d)[None, :]
    mask = dim < half
    element_ty = cache_ptr.dtype.element_ty
    if bits > 0:
        num_bytes: constexpr = half * bits // 4
        row_ptr, row_scale_ptr = find_row(cache_ptr, slot, kv_head, kv_heads, num_bytes, block_size)
        top = tl.maximum(tl.max(tl.max(tl.abs(low), axis=1), axis=0), tl.max(tl.max(tl.abs(high), axis=1), axis=0))
        rounded = tl.minimum(tl.maximum(top / largest, smallest_scale), largest_scale).to(tl.float16)
        scale = rounded.to(tl.float32)
        low_codes, high_codes = round_to_integers(low, scale, largest), round_to_integers(high, scale, largest)
        if bits == 4:
            codes = (low_codes + 8) | ((high_codes + 8) << 4)
            tl.store(row_ptr + dim, codes.to(element_ty), mask=mask)
        else:
            tl.store(row_ptr + dim, low_codes.to(element_ty), mask=mask)
            tl.store(row_ptr + half + dim, high_codes.to(element_ty), mask=mask)
        tl.store(row_scale_ptr, rounded)
    else:
        if quantized:
            scale = tl.load(scale_ptr)
            low = tl.minimum(tl.maximum(low / scale, -fp8_max), fp8_max)
            high = tl.minimum(tl.maximum(high / scale, -fp8_max), fp8_max)
        row_ptr = cache_ptr + (slot * kv_heads + kv_head) * (2 * half) + dim
        tl.store(row_ptr, low.to(element_ty), mask=mask)
        tl.store(row_ptr + half, high.to(element_ty), mask=mask)


@triton.jit
def rotary_store_kernel(
    qkv_ptr: Value,
    q_weight_ptr: Value,
    k_weight_ptr: Value,
    cos_sin_ptr: Value,
    positions_ptr: Value,
    slots_ptr: Value,
    k_cache_ptr: Value,
    v_cache_ptr: Value,
    kv_scales_ptr: Value,
    q_out_ptr: Value,
    qkv_stride: Value,
    eps: Value,
    kv_heads: constexpr,
    group_size: constexpr,
    half: constexpr,
    block_g: constexpr,
    block_d: constexpr,
    block_size: constexpr,
    normed: constexpr,
    quantized: constexpr,
    fp8_max: constexpr,
    bits: constexpr,
    largest: constexpr,
    smallest_scale: constexpr,
    largest_scale: constexpr,
) -> None:
    """One program handles one KV head of one token, and the query heads that read it."""
    token, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head_dim: constexpr = 2 * half
    heads: constexpr = kv_heads * group_size
    dim = tl.arange(0, block_d)[None, :]
    angles_ptr = cos_sin_ptr + tl.load(positions_ptr + token) * head_dim + dim
    cos = tl.load(angles_ptr, mask=dim < half, other=0.0)
    sin = tl.load(angles_ptr + half, mask=dim < half, other=0.0)
    token_ptr = qkv_ptr + token * qkv_stride
    first_head = kv_head * group_size
    q_low, q_high = rotated_heads(
        token_ptr + first_head * head_dim, q_weight_ptr, cos, sin, eps, group_size, half, block_g, block_d, normed
    )
    group = tl.arange(0, block_g)[:, None]
    mask = (group < group_size) & (dim < half)
    out_ptr = q_out_ptr + (token * heads + first_head + group) * head_dim + dim
    tl.store(out_ptr, q_low.to(q_out_ptr.dtype.element_ty), mask=mask)
    tl.store(out_ptr + half, q_high.to(q_out_ptr.dtype.element_ty), mask=mask)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        k_ptr = token_ptr + (heads + kv_head) * head_dim
        k_low, k_high = rotated_heads(k_ptr, k_weight_ptr, cos, sin, eps, 1, half, 1, block_d, normed)
        store_head(
            k_low, k_high, k_cache_ptr, slot, kv_head, kv_scales_ptr + kv_head, kv_heads, half, block_d, block_size,
            quantized, fp8_max, bits, largest, smallest_scale, largest_scale,
        )  # fmt: skip
        v_ptr = k_ptr + kv_heads * head_dim + dim
        v_low = tl.load(v_ptr, mask=dim < half, other=0.0).to(tl.float32)
        v_high = tl.load(v_ptr + half, mask=dim < half, other=0.0).to(tl.float32)
        store_head(
            v_low, v_high, v_cache_ptr, slot, kv_head, kv_scales_ptr + kv_heads + kv_head, kv_heads, half, block_d,
            block_size, quantized, fp8_max, bits, largest, smallest_scale, largest_scale,
        )  # fmt: skip


launch_rotary_store = Launcher(rotary_store_kernel)


def num_warps(group_size: int, head_dim: int) -> int:
    """Warps of a program: one per 512 elements of q (16 per thread), at most 4."""
    return min(max(next_power_of_2(group_size) * next_power_of_2(head_dim) // 512, 1), 4)


def rotary_store(
    qkv: Tensor,
    norms: HeadNorms | None,
    cos_sin: Tensor,
    positions: Tensor,
    kv: LayerKV,
    slot_mapping: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """Normalise and rotate q and k, store k and v; returns q, [T, heads, head_dim], contiguous, as `out` if given.

    qkv: [T, heads + 2 * kv_heads, head_dim], biases added; last two dimensions contiguous, any stride between tokens.
    norms: None for models without norms of q and k. cos_sin, positions: as in `kernels.rotary.rotary_reference`.
    kv, slot_mapping: as in `kernels.cache.kv_store.store_kv_reference`, with a cache of any dtype.
    """
    (num_tokens, all_heads, head_dim), kv_heads = qkv.shape, kv.keys.shape[2]
    heads, half = all_heads - 2 * kv_heads, head_dim // 2
    if out is None:
        out = torch.empty(num_tokens, heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if num_tokens == 0:
        return out
    group_size = heads // kv_heads
    block_g, block_d = next_power_of_2(group_size), next_power_of_2(half)
    weights = (cos_sin, cos_sin, 0.0) if norms is None else norms
    launch_rotary_store(
        (num_tokens, kv_heads),
        qkv,
        weights[0],
        weights[1],
        cos_sin,
        positions,
        slot_mapping,
        kv.keys,
        kv.values,
        cos_sin if kv.scales is None else kv.scales,
        out,
        qkv.stride(0),
        weights[2],
        kv_heads=kv_heads,
        group_size=group_size,
        half=half,
        block_g=block_g,
        block_d=block_d,
        block_size=kv.keys.shape[1],
        normed=norms is not None,
        quantized=kv.scales is not None,
        fp8_max=FP8_MAX,
        bits=BITS.get(kv.keys.dtype, 0),
        largest=float(LARGEST.get(kv.keys.dtype, 1)),
        smallest_scale=SMALLEST_SCALE,
        largest_scale=LARGEST_SCALE,
        num_warps=num_warps(group_size, head_dim),
    )
    return out
