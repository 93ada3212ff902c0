"""Causal attention of prompt chunks over paged contexts.

The context of a chunk is the cached prefix, the earlier chunks and the chunk itself. In a chunk of n tokens with a
context of c tokens, token i sees the first c - n + i + 1 tokens of the context.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.kv_integers import BITS, load_integers
from kernels.kv_store import read_rows
from kernels.launch import Launcher
from kernels.runtime import INTERPRETED, Value, ceil_div, constexpr, next_power_of_2, tl, triton

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class PrefillConfig:
    """Compile-time choices of the prefill kernel."""

    block_m: int
    block_n: int
    block_d: int
    num_warps: int
    num_stages: int


def prefill_config(head_dim: int, max_seqlen_q: int, element_size: int, of_integers: bool = False) -> PrefillConfig:
    """Choices for a head_dim (1..256), the longest chunk in tokens, the bytes of an element of q, and whether the cache
    has integers, whose conversion takes registers."""
    block_d = max(16, next_power_of_2(head_dim))
    row_bytes = block_d * element_size
    block_m, block_n, warps, stages = 128, 32 if of_integers else 64, 8, 3
    if row_bytes > 512:
        block_m, block_n, warps, stages = 32, 16, 8, 2
    elif row_bytes > 256 or element_size > 2:
        block_m, block_n, warps, stages = 64, 32, 8, 2
    if max_seqlen_q <= block_m // 2:
        block_m, warps = max(16, next_power_of_2(max_seqlen_q)), 4
    return PrefillConfig(block_m, block_n, block_d, warps, stages)


@triton.jit
def attend_block(
    q: Value,
    acc: Value,
    total: Value,
    maximum: Value,
    k_cache_ptr: Value,
    v_cache_ptr: Value,
    table_ptr: Value,
    first: Value,
    context: Value,
    visible: Value,
    kv_head: Value,
    dim: Value,
    qk_scale: Value,
    kv_heads: constexpr,
    head_dim: constexpr,
    block_size: constexpr,
    block_n: constexpr,
    masked: constexpr,
    quantized: constexpr,
    bits: constexpr,
    interpreted: constexpr,
) -> Value:
    """Add keys first to first + block_n - 1 to the online softmax, and return its new (acc, total, maximum).

    `masked` must be true if a query of the tile does not see all of these keys.
    """
    positions = first + tl.arange(0, block_n)
    inside = positions < context
    blocks = tl.load(table_ptr + positions // block_size, mask=inside, other=0).to(tl.int64)
    slots = blocks * block_size + positions % block_size
    if bits > 0:
        rows = slots * kv_heads + kv_head
        k, k_scales = load_integers(k_cache_ptr, rows, dim, inside, head_dim, bits)
        v, v_scales = load_integers(v_cache_ptr, rows, dim, inside, head_dim, bits)
    else:
        offsets = slots[:, None] * (kv_heads * head_dim) + (kv_head * head_dim + dim)[None, :]
        mask = inside[:, None] & (dim < head_dim)[None, :]
        k = tl.load(k_cache_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_cache_ptr + offsets, mask=mask, other=0.0)
    if interpreted or quantized or bits > 0:
        k, v = k.to(q.dtype), v.to(q.dtype)
    scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * qk_scale
    if bits > 0:
        scores *= k_scales[None, :]
    if masked:
        scores = tl.where(positions[None, :] < visible[:, None], scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
    weights = tl.exp2(scores - new_maximum[:, None])
    shrink = tl.exp2(maximum - new_maximum)
    total = total * shrink + tl.sum(weights, axis=1)
    if bits > 0:
        weights *= v_scales[None, :]
    acc = tl.dot(weights.to(v.dtype), v, acc=acc * shrink[:, None], input_precision="tf32x3")
    return acc, total, new_maximum


@triton.jit(do_not_specialize=["table_stride"])  # changes from step to step, and compiling takes a second
def prefill_kernel(
    q_ptr: Value,
    k_cache_ptr: Value,
    v_cache_ptr: Value,
    cu_seqlens_ptr: Value,
    context_lens_ptr: Value,
    block_tables_ptr: Value,
    out_ptr: Value,
    qk_scale: Value,
    q_stride: Value,
    out_stride: Value,
    table_stride: Value,
    kv_scales_ptr: Value,
    kv_heads: constexpr,
    group_size: constexpr,
    head_dim: constexpr,
    block_size: constexpr,
    block_m: constexpr,
    block_n: constexpr,
    block_d: constexpr,
    quantized: constexpr,
    bits: constexpr,
    interpreted: constexpr,
) -> None:
    """One program computes block_m tokens of one chunk for one head.

    The last tokens of a chunk see the most keys and take longest, so their programs are launched first.
    """
    row = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1)
    begin = tl.load(cu_seqlens_ptr + row).to(tl.int64)
    count = (tl.load(cu_seqlens_ptr + row + 1) - begin).to(tl.int32)
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) * block_m
    if tile >= count:
        return
    context = tl.load(context_lens_ptr + row)
    cached = context - count

    queries, dim = tile + tl.arange(0, block_m), tl.arange(0, block_d)
    q_mask = (queries < count)[:, None] & (dim < head_dim)[None, :]
    q_rows = begin + queries
    q = tl.load(q_ptr + q_rows[:, None] * q_stride + head * head_dim + dim[None, :], mask=q_mask, other=0.0)
    if interpreted:
        q = q.to(tl.float32)
    if quantized:  # the scale of the keys is applied to the scores, the scale of the values to the output
        qk_scale *= tl.load(kv_scales_ptr + head // group_size)
    table_ptr = block_tables_ptr + row * table_stride
    kv_head = head // group_size
    visible = cached + queries + 1
    maximum = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    acc = tl.zeros([block_m, block_d], tl.float32)
    # Every query of the tile sees the first `shared` keys; the last query of the tile sees the first `last` keys.
    shared = (cached + tile + 1) // block_n * block_n
    last = tl.minimum(cached + tile + block_m, context)
    for first in range(0, shared, block_n):
        acc, total, maximum = attend_block(
            q, acc, total, maximum, k_cache_ptr, v_cache_ptr, table_ptr, first, context, visible, kv_head, dim,
            qk_scale, kv_heads, head_dim, block_size, block_n, False, quantized, bits, interpreted,
        )  # fmt: skip
    for first in range(shared, last, block_n):
        acc, total, maximum = attend_block(
            q, acc, total, maximum, k_cache_ptr, v_cache_ptr, table_ptr, first, context, visible, kv_head, dim,
            qk_scale, kv_heads, head_dim, block_size, block_n, True, quantized, bits, interpreted,
        )  # fmt: skip
    if quantized:
        acc *= tl.load(kv_scales_ptr + kv_heads + head // group_size)
    acc = acc / total[:, None]
    places = q_rows[:, None] * out_stride + head * head_dim + dim[None, :]
    tl.store(out_ptr + places, acc.to(out_ptr.dtype.element_ty), mask=q_mask)


launch_prefill = Launcher(prefill_kernel)


def prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cu_seqlens_q: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    max_seqlen_q: int,
    out: Tensor | None = None,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Attention of prompt chunks over their contexts -> [T, heads, head_dim].

    The keys and values of the chunks must be in the cache already.

    q, out: [T, heads, head_dim], the chunks' tokens one after the other; last two dimensions contiguous, any stride
    between tokens.
    k_cache, v_cache: [num_blocks, block_size, kv_heads, head_dim], contiguous; float32, float16 or bfloat16, as q, or
    float8 with kv_scales (`kernels.kv_store`), or integers (`kernels.kv_integers`).
    cu_seqlens_q: int32[n + 1]; context_lens: int32[n]; block_tables: int32[n, max_blocks].
    max_seqlen_q: tokens of the longest chunk. Launches without synchronising.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    num_rows, heads, head_dim = context_lens.shape[0], q.shape[1], q.shape[2]
    if num_rows == 0 or q.shape[0] == 0:
        return out
    bits = BITS.get(k_cache.dtype, 0)
    config = prefill_config(head_dim, max_seqlen_q, q.element_size(), bits > 0)
    launch_prefill(
        (ceil_div(max_seqlen_q, config.block_m), heads, num_rows),
        q,
        k_cache,
        v_cache,
        cu_seqlens_q,
        context_lens,
        block_tables,
        out,
        scale * LOG2_E,
        q.stride(0),
        out.stride(0),
        block_tables.stride(0),
        context_lens if kv_scales is None else kv_scales,
        kv_heads=k_cache.shape[2],
        group_size=heads // k_cache.shape[2],
        head_dim=head_dim,
        block_size=k_cache.shape[1],
        block_m=config.block_m,
        block_n=config.block_n,
        block_d=config.block_d,
        quantized=kv_scales is not None,
        bits=bits,
        interpreted=INTERPRETED,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def prefill_attention_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cu_seqlens_q: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    out: Tensor,
    kv_scales: Tensor | None = None,
) -> None:
    """PyTorch version of `prefill_attention`, one sequence after the other."""
    block_size, kv_heads, row_width = k_cache.shape[1:]
    group_size, head_dim = q.shape[1] // kv_heads, q.shape[2]
    scales_of_both = (None, None) if kv_scales is None else kv_scales
    bounds = cu_seqlens_q.tolist()
    for row, context in enumerate(context_lens.tolist()):
        start, end = bounds[row], bounds[row + 1]
        count = end - start
        if count == 0:
            continue
        blocks = block_tables[row, : ceil_div(context, block_size)].long()
        keys, values = (
            read_rows(cache.index_select(0, blocks).view(-1, kv_heads, row_width)[:context], scales, q.dtype)
            for cache, scales in zip((k_cache, v_cache), scales_of_both, strict=True)
        )
        # `expand` repeats each KV head for its query heads without copying it.
        shape = (context, kv_heads, group_size, head_dim)
        keys, values = (x.unsqueeze(2).expand(shape).permute(1, 2, 0, 3) for x in (keys, values))
        queries = q[start:end].view(count, kv_heads, group_size, head_dim).permute(1, 2, 0, 3)
        mask = None if count == context else _causal_mask(count, context, q.device)
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None and count > 1, scale=scale
        )
        out[start:end] = attended.permute(2, 0, 1, 3).reshape(count, -1, head_dim)


def _causal_mask(count: int, context: int, device: torch.device) -> Tensor:
    """bool[count, context]: token i of the last `count` sees the tokens before it and itself."""
    return torch.ones(count, context, dtype=torch.bool, device=device).tril_(context - count)
