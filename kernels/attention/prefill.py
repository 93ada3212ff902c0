"""Causal attention of prompt chunks over paged contexts.

The context of a chunk is the cached prefix, the earlier chunks and the chunk itself. In a chunk of n tokens with a
context of c tokens, token i sees the first c - n + i + 1 tokens of the context.

The rows of a tile of queries are the tokens of the chunk, each in all query heads of one KV head, so that a few tokens
fill a tile and share each key that it loads. A tile's context is split over several programs if there are too few tiles
to fill the device (`kernels.attention.splits`), as with short chunks after long cached prefixes:

    grid (kv_heads x splits, tiles, chunks)   q [tokens x group = block_m, head_dim] x K [block_n, head_dim]
    grid (tokens, heads)                      join the partials, if there are several splits
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.configs import device_limits, prefill_config
from kernels.attention.splits import empty_partials, join_splits, prefill_splits, split_range
from kernels.attention.tile import attend_tile, beside_float8, find_blocks, launch_constants, start_softmax
from kernels.attention.torch_decode import attend
from kernels.cache.kv_store import read_blocks
from kernels.cache.layer_kv import LayerKV
from kernels.launch import Launcher
from kernels.runtime import Value, ceil_div, constexpr, tl, triton

LOG2_E = 1.4426950408889634


@triton.jit(do_not_specialize=["table_stride", "splits"])  # both change from step to step, and compiling takes a second
def prefill_kernel(
    q_ptr: Value,
    k_cache_ptr: Value,
    v_cache_ptr: Value,
    cu_seqlens_ptr: Value,
    context_lens_ptr: Value,
    block_tables_ptr: Value,
    out_ptr: Value,
    partial_ptr: Value,
    log_sum_ptr: Value,
    qk_scale: Value,
    q_stride: Value,
    out_stride: Value,
    table_stride: Value,
    splits: Value,
    kv_scales_ptr: Value,
    sinks_ptr: Value,
    kv_heads: constexpr,
    group_size: constexpr,
    head_dim: constexpr,
    block_size: constexpr,
    block_m: constexpr,
    block_n: constexpr,
    block_d: constexpr,
    min_split: constexpr,
    one_split: constexpr,
    quantized: constexpr,
    bits: constexpr,
    window: constexpr,
    has_sinks: constexpr,
    interpreted: constexpr,
) -> None:
    """One program computes one split of one tile of a chunk for one KV head.

    The last tokens of a chunk see the most keys and take longest, so their programs are launched first.
    """
    kv_head = tl.program_id(0) % kv_heads
    split = tl.program_id(0) // kv_heads
    row = tl.program_id(2).to(tl.int64)
    begin = tl.load(cu_seqlens_ptr + row).to(tl.int64)
    count = (tl.load(cu_seqlens_ptr + row + 1) - begin).to(tl.int32)
    tile = (tl.num_programs(1) - 1 - tl.program_id(1)) * block_m
    if tile >= count * group_size:
        return
    context = tl.load(context_lens_ptr + row)
    cached = context - count

    # Row i of the tile is row tile + i of the chunk's (token, query head) pairs. Tokens are counted from the tile's
    # first, `first_query` of the chunk, so that offsets within the tile fit into 32 bits: 64 would cost registers.
    pairs = tile % group_size + tl.arange(0, block_m)
    tokens = pairs // group_size
    heads = kv_head * group_size + pairs % group_size
    first_query = tile // group_size
    valid = first_query + tokens < count
    q_rows = begin + first_query
    # The queries of the tile see keys from `least` on, the last one of them the keys before `last`.
    last = tl.minimum(cached + (tile + block_m - 1) // group_size + 1, context)
    least = 0
    if window > 0:
        least = tl.maximum(cached + first_query + 1 - window, 0)
    if one_split:
        start = least
        end = last
    else:
        start, end = split_range(least, last, split, splits, min_split, block_n)
        partials = (tokens * (kv_heads * group_size) + heads) * splits + split
        first_partial = q_rows * (kv_heads * group_size * splits)
        log_sum_ptr += first_partial
        partial_ptr += first_partial * head_dim
        if start >= last:
            tl.store(log_sum_ptr + partials, tl.full([block_m], float("-inf"), tl.float32), mask=valid)
            return

    lanes, dim = tl.arange(0, block_n), tl.arange(0, block_d)
    q_mask = valid[:, None] & (dim < head_dim)[None, :]
    q_places = (tokens * q_stride + heads * head_dim)[:, None] + dim[None, :]
    q = tl.load(q_ptr + q_rows * q_stride + q_places, mask=q_mask, other=0.0)
    if interpreted:
        q = q.to(tl.float32)
    if quantized:  # the scale of the keys is applied to the scores, the scale of the values to the output
        qk_scale *= tl.load(kv_scales_ptr + kv_head)
        q = beside_float8(q)
    table_ptr = block_tables_ptr + row * table_stride
    visible = cached + first_query + 1 + tokens
    total, maximum = start_softmax(sinks_ptr + heads, valid, split, block_m, has_sinks)
    acc = tl.zeros([block_m, block_d], tl.float32)
    # Without a window, every query of the tile sees the keys before `shared`, so that these need no mask.
    shared = start
    blocks = find_blocks(table_ptr, start + lanes, end, block_size)
    if window == 0:
        shared = tl.maximum(start, tl.minimum(end, (cached + first_query + 1) // block_n * block_n))
        for first in range(start, shared, block_n):
            next_blocks = find_blocks(table_ptr, first + block_n + lanes, end, block_size)
            acc, total, maximum = attend_tile(
                q, acc, total, maximum, k_cache_ptr, v_cache_ptr, blocks, first + lanes, end, visible, kv_head, dim,
                qk_scale, kv_heads, head_dim, block_size, block_d, False, True, interpreted or quantized, bits, 0,
            )  # fmt: skip
            blocks = next_blocks
    for first in range(shared, end, block_n):
        next_blocks = find_blocks(table_ptr, first + block_n + lanes, end, block_size)
        acc, total, maximum = attend_tile(
            q, acc, total, maximum, k_cache_ptr, v_cache_ptr, blocks, first + lanes, end, visible, kv_head, dim,
            qk_scale, kv_heads, head_dim, block_size, block_d, True, False, interpreted or quantized, bits, window,
        )  # fmt: skip
        blocks = next_blocks

    # Computed again, from an offset that is 0 but that the compiler does not know: kept through the loops, these values
    # would take 30 registers, and with them the second program of a multiprocessor.
    tile += (tl.load(cu_seqlens_ptr + row, volatile=True).to(tl.int64) - begin).to(tl.int32)
    pairs = tile % group_size + tl.arange(0, block_m)
    tokens = pairs // group_size
    heads = kv_head * group_size + pairs % group_size
    valid = tile // group_size + tokens < count
    q_mask = valid[:, None] & (dim < head_dim)[None, :]
    if quantized:
        acc *= tl.load(kv_scales_ptr + kv_heads + kv_head)
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]  # 0 if the split has no key that the query sees
    if one_split:
        places = (tokens * out_stride + heads * head_dim)[:, None] + dim[None, :]
        tl.store(out_ptr + q_rows * out_stride + places, acc.to(out_ptr.dtype.element_ty), mask=q_mask)
    else:
        partials = (tokens * (kv_heads * group_size) + heads) * splits + split
        tl.store(log_sum_ptr + partials, maximum + tl.log2(total), mask=valid)
        tl.store(partial_ptr + partials[:, None] * head_dim + dim[None, :], acc, mask=q_mask)


launch_prefill = Launcher(prefill_kernel)


def prefill_attention(
    q: Tensor,
    kv: LayerKV,
    cu_seqlens_q: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    max_seqlen_q: int,
    max_context: int,
    out: Tensor | None = None,
    splits: int | None = None,
    window: int = 0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of prompt chunks over their contexts -> [T, heads, head_dim].

    The keys and values of the chunks must be in the cache already.

    q, out: [T, heads, head_dim], the chunks' tokens one after the other; last two dimensions contiguous, any stride
    between tokens.
    kv: of q's dtype, float8 with scales (`kernels.cache.kv_store`), or integers (`kernels.cache.kv_integers`).
    cu_seqlens_q: int32[n + 1]; context_lens: int32[n]; block_tables: int32[n, max_blocks].
    max_seqlen_q: tokens of the longest chunk; max_context: the largest of context_lens. splits: splits of each context;
    None takes `prefill_splits`. window, sinks: as in AttentionBackend. Launches without synchronising.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    num_rows, heads, head_dim = context_lens.shape[0], q.shape[1], q.shape[2]
    if num_rows == 0 or q.shape[0] == 0:
        return out
    kv_heads, group_size = kv.keys.shape[2], heads // kv.keys.shape[2]
    capability, num_sms = device_limits(q.device)
    config = prefill_config(capability, head_dim, max_seqlen_q * group_size, q.element_size(), kv.keys.dtype)
    tiles = ceil_div(max_seqlen_q * group_size, config.block_m)
    if splits is None:
        programs = kv_heads * min(num_rows * tiles, q.shape[0] * group_size // config.block_m + num_rows)
        seen = min(max_context, window + config.block_m) if window else max_context
        splits = prefill_splits(programs, seen, config.programs_per_sm * num_sms)
    partial, log_sum = empty_partials(q, splits) if splits > 1 else (out, out)
    launch_prefill(
        (kv_heads * splits, tiles, num_rows),
        q,
        kv.keys,
        kv.values,
        cu_seqlens_q,
        context_lens,
        block_tables,
        out,
        partial,
        log_sum,
        scale * LOG2_E,
        q.stride(0),
        out.stride(0),
        block_tables.stride(0),
        splits,
        context_lens if kv.scales is None else kv.scales,
        q if sinks is None else sinks,
        block_m=config.block_m,
        **launch_constants(heads, head_dim, kv, config, splits, window, sinks is not None),
    )
    if splits > 1:
        join_splits(partial, log_sum, out)
    return out


def prefill_attention_reference(
    q: Tensor,
    kv: LayerKV,
    cu_seqlens_q: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    out: Tensor,
    window: int = 0,
    sinks: Tensor | None = None,
) -> None:
    """PyTorch version of `prefill_attention`, one sequence after the other."""
    block_size, kv_heads = kv.keys.shape[1:3]
    group_size, head_dim = q.shape[1] // kv_heads, q.shape[2]
    scales_of_both = (None, None) if kv.scales is None else kv.scales
    bounds = cu_seqlens_q.tolist()
    for row, context in enumerate(context_lens.tolist()):
        start, end = bounds[row], bounds[row + 1]
        count = end - start
        if count == 0:
            continue
        blocks = block_tables[row, : ceil_div(context, block_size)].long()
        keys, values = (
            read_blocks(cache.index_select(0, blocks), scales, q.dtype)
            .view(-1, kv_heads, 1, head_dim)[:context]
            .permute(1, 2, 0, 3)
            for cache, scales in zip((kv.keys, kv.keys if kv.is_latent else kv.values), scales_of_both, strict=True)
        )
        queries = q[start:end].view(count, kv_heads, group_size, head_dim).permute(1, 2, 0, 3)
        is_masked = 0 < window < context or count < context or sinks is not None
        mask = _causal_mask(count, context, q.device, window) if is_masked else None
        grouped = None if sinks is None else sinks.view(kv_heads, group_size, 1)
        attended = attend(queries, keys, values, mask, scale, grouped, mask is None and count > 1)
        out[start:end] = attended.permute(2, 0, 1, 3).reshape(count, -1, head_dim)[..., : out.shape[2]]


def _causal_mask(count: int, context: int, device: torch.device, window: int) -> Tensor:
    """bool[count, context]: token i of the last `count` sees the tokens before it and itself; with a `window`, so many
    of them at most."""
    seen = torch.ones(count, context, dtype=torch.bool, device=device).tril_(context - count)
    return seen.triu_(context - count - window + 1) if window else seen
