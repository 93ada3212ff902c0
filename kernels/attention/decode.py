"""Paged attention of one new token per sequence, in Triton.

Each context is split over several programs (`kernels.attention.splits`), so that even a small batch fills the device.
One program handles all query heads of a KV head, so that every key and value is read once. The programs of all KV heads
of a sequence are launched next to each other: they read the same blocks. A split that is shorter comes last:

    grid (kv_heads, batch, splits)       q [group -> 16, head_dim] x K [block_n, head_dim] -> partial, log-sum
    grid (batch, heads)                  join the partials of a row's splits
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.configs import decode_config, device_limits
from kernels.attention.splits import decode_splits, empty_partials, join_splits, split_range
from kernels.attention.tile import attend_tile, beside_float8, find_blocks, launch_constants, start_softmax
from kernels.cache.layer_kv import LayerKV
from kernels.launch import Launcher
from kernels.runtime import Value, constexpr, next_power_of_2, tl, triton

LOG2_E = 1.4426950408889634


@triton.jit(do_not_specialize=["table_stride", "splits"])  # both change from step to step, and compiling takes a second
def decode_kernel(
    q_ptr: Value,
    k_cache_ptr: Value,
    v_cache_ptr: Value,
    context_lens_ptr: Value,
    block_tables_ptr: Value,
    out_ptr: Value,
    partial_ptr: Value,
    log_sum_ptr: Value,
    qk_scale: Value,
    q_stride: Value,
    table_stride: Value,
    out_stride: Value,
    splits: Value,
    kv_scales_ptr: Value,
    sinks_ptr: Value,
    kv_heads: constexpr,
    group_size: constexpr,
    head_dim: constexpr,
    block_size: constexpr,
    block_n: constexpr,
    block_d: constexpr,
    block_g: constexpr,
    min_split: constexpr,
    one_split: constexpr,
    quantized: constexpr,
    bits: constexpr,
    window: constexpr,
    has_sinks: constexpr,
    interpreted: constexpr,
) -> None:
    """One program computes one split of one sequence for one KV head; qk_scale is the softmax scale times log2(e)."""
    kv_head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    context = tl.load(context_lens_ptr + row)
    lanes, dim, group = tl.arange(0, block_n), tl.arange(0, block_d), tl.arange(0, block_g)
    heads = kv_head * group_size + group
    partials = (row * kv_heads * group_size + heads) * splits + split
    least = 0
    if window > 0:
        least = tl.maximum(context - window, 0)
    if one_split:
        start = least
        end = context
    else:
        start, end = split_range(least, context, split, splits, min_split, block_n)
        if start >= context:
            tl.store(log_sum_ptr + partials, tl.full([block_g], float("-inf"), tl.float32), mask=group < group_size)
            return

    q_mask = (group < group_size)[:, None] & (dim < head_dim)[None, :]
    q = tl.load(q_ptr + row * q_stride + heads[:, None] * head_dim + dim[None, :], mask=q_mask, other=0.0)
    if interpreted:
        q = q.to(tl.float32)
    if quantized:  # the scale of the keys is applied to the scores, the scale of the values to the output
        qk_scale *= tl.load(kv_scales_ptr + kv_head)
        q = beside_float8(q)
    table_ptr = block_tables_ptr + row * table_stride
    total, maximum = start_softmax(sinks_ptr + heads, group < group_size, split, block_g, has_sinks)
    acc = tl.zeros([block_g, block_d], tl.float32)
    blocks = find_blocks(table_ptr, start + lanes, end, block_size)
    for first in range(start, end, block_n):
        next_blocks = find_blocks(table_ptr, first + block_n + lanes, end, block_size)
        acc, total, maximum = attend_tile(
            q, acc, total, maximum, k_cache_ptr, v_cache_ptr, blocks, first + lanes, end, end, kv_head, dim, qk_scale,
            kv_heads, head_dim, block_size, block_d, False, False, interpreted or quantized, bits, 0,
        )  # fmt: skip
        blocks = next_blocks

    if quantized:
        acc *= tl.load(kv_scales_ptr + kv_heads + kv_head)
    # A padded row has an empty context, hence total 0: its output is zeros.
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    if one_split:
        places = row * out_stride + heads[:, None] * head_dim + dim[None, :]
        tl.store(out_ptr + places, acc.to(out_ptr.dtype.element_ty), mask=q_mask)
    else:
        tl.store(log_sum_ptr + partials, maximum + tl.log2(total), mask=group < group_size)
        tl.store(partial_ptr + partials[:, None] * head_dim + dim[None, :], acc, mask=q_mask)


launch_decode = Launcher(decode_kernel)


def decode_attention(
    q: Tensor,
    kv: LayerKV,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    max_context: int,
    out: Tensor | None = None,
    splits: int | None = None,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of one new token per sequence over its context -> [B, heads, head_dim].

    The key and value of the new token must be in the cache already.

    q, out: [B, heads, head_dim], last two dimensions contiguous, any stride between rows.
    kv: of q's dtype, float8 with scales (`kernels.cache.kv_store`), or integers (`kernels.cache.kv_integers`).
    context_lens: int32[B]; 0 marks a padded row, whose output is zeros. block_tables: int32[B, max_blocks].
    max_context: upper bound of context_lens. splits: splits of each context; None takes `decode_splits`.
    window, sinks: as in AttentionBackend.
    Launches without synchronising, so it can be captured in a CUDA graph.
    """
    batch, heads, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if batch == 0:
        return out
    kv_heads = kv.keys.shape[2]
    capability, num_sms = device_limits(q.device)
    config = decode_config(capability, head_dim, q.element_size(), kv.keys.dtype)
    seen = min(max_context, window) if window else max_context
    splits = splits or decode_splits(batch * kv_heads, seen, config.programs_per_sm * num_sms)
    partial, log_sum = empty_partials(q, splits) if splits > 1 else (out, out)
    launch_decode(
        (kv_heads, batch, splits),
        q,
        kv.keys,
        kv.values,
        context_lens,
        block_tables,
        out,
        partial,
        log_sum,
        scale * LOG2_E,
        q.stride(0),
        block_tables.stride(0),
        out.stride(0),
        splits,
        context_lens if kv.scales is None else kv.scales,
        q if sinks is None else sinks,
        block_g=max(16, next_power_of_2(heads // kv_heads)),
        **launch_constants(heads, head_dim, kv, config, splits, window, sinks is not None),
    )
    if splits > 1:
        join_splits(partial, log_sum, out)
    return out
