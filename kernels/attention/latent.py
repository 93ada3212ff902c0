"""Absorbed latent attention over a paged cache of latents, in Triton: prompt chunks and decodes alike.

There is one KV head. A key is a latent of `rank` elements and `rope` rotated ones, and its value is the latent, so that
one load of a tile serves both products. A decode is a chunk of one token. As in `kernels.attention.prefill`, the rows
of a tile of queries are (token, query head) pairs, and a context is split over several programs where there are few:

    grid (splits, tiles, chunks)   q [pairs, rank | rope] x K [block_n, rank | rope]ᵀ -> weights x K [block_n, rank]
    grid (tokens, heads)           join the partials, if there are several splits
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.configs import device_limits, latent_config
from kernels.attention.prefill import LOG2_E
from kernels.attention.splits import (
    MIN_SPLIT_TOKENS,
    decode_splits,
    empty_partials,
    join_splits,
    prefill_splits,
    split_range,
)
from kernels.attention.tile import find_blocks
from kernels.cache.layer_kv import LayerKV
from kernels.launch import Launcher
from kernels.runtime import INTERPRETED, Value, ceil_div, constexpr, next_power_of_2, tl, triton


@triton.jit(do_not_specialize=["table_stride", "splits"])  # both change from step to step, and compiling takes a second
def latent_kernel(
    q_ptr: Value,
    cache_ptr: Value,
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
    heads: constexpr,
    rank: constexpr,
    rope: constexpr,
    block_size: constexpr,
    block_m: constexpr,
    block_n: constexpr,
    block_r: constexpr,
    block_d: constexpr,
    min_split: constexpr,
    one_split: constexpr,
    interpreted: constexpr,
) -> None:
    """One program computes one split of one tile of a chunk; the last tokens of a chunk come first."""
    split, row = tl.program_id(0), tl.program_id(2).to(tl.int64)
    begin = tl.load(cu_seqlens_ptr + row).to(tl.int64)
    count = (tl.load(cu_seqlens_ptr + row + 1) - begin).to(tl.int32)
    tile = (tl.num_programs(1) - 1 - tl.program_id(1)) * block_m
    if tile >= count * heads:
        return
    context = tl.load(context_lens_ptr + row)
    pairs = tile + tl.arange(0, block_m)
    tokens, head = pairs // heads, pairs % heads
    valid = tokens < count
    places = (begin + tokens) * heads + head
    last = tl.minimum(context - count + (tile + block_m - 1) // heads + 1, context)
    if one_split:
        start = 0
        end = last
    else:
        start, end = split_range(0, last, split, splits, min_split, block_n)
        if start >= last:
            tl.store(log_sum_ptr + places * splits + split, tl.full([block_m], float("-inf"), tl.float32), mask=valid)
            return

    lanes, dim, turned = tl.arange(0, block_n), tl.arange(0, block_r), tl.arange(0, block_d)
    q_rows = (q_ptr + (begin + tokens) * q_stride + head * (rank + rope))[:, None]
    q = tl.load(q_rows + dim[None, :], mask=valid[:, None] & (dim < rank)[None, :], other=0.0)
    q_rope = tl.load(q_rows + rank + turned[None, :], mask=valid[:, None] & (turned < rope)[None, :], other=0.0)
    if interpreted:
        q, q_rope = q.to(tl.float32), q_rope.to(tl.float32)
    table_ptr = block_tables_ptr + row * table_stride
    visible = context - count + 1 + tokens
    maximum = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    acc = tl.zeros([block_m, block_r], tl.float32)
    blocks = find_blocks(table_ptr, start + lanes, end, block_size)
    for first in range(start, end, block_n):
        positions = first + lanes
        next_blocks = find_blocks(table_ptr, positions + block_n, end, block_size)
        slots = blocks.to(tl.int64) * block_size + positions % block_size
        rows, inside = (cache_ptr + slots * (rank + rope))[:, None], (positions < end)[:, None]
        latent = tl.load(rows + dim[None, :], mask=inside & (dim < rank)[None, :], other=0.0)
        key = tl.load(rows + rank + turned[None, :], mask=inside & (turned < rope)[None, :], other=0.0)
        if interpreted:
            latent, key = latent.to(tl.float32), key.to(tl.float32)
        scores = tl.dot(q_rope, tl.trans(key), input_precision="tf32x3")
        scores = tl.dot(q, tl.trans(latent), acc=scores, input_precision="tf32x3") * qk_scale
        scores = tl.where(positions[None, :] < visible[:, None], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)  # of rows that have seen no key so far
        weights, shrink = tl.exp2(scores - reference[:, None]), tl.exp2(maximum - reference)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(latent.dtype), latent, acc=acc * shrink[:, None], input_precision="tf32x3")
        maximum, blocks = new_maximum, next_blocks

    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]  # a padded row, or a split without keys: 0
    mask = valid[:, None] & (dim < rank)[None, :]
    if one_split:
        out_rows = (out_ptr + (begin + tokens) * out_stride + head * rank)[:, None]
        tl.store(out_rows + dim[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        partials = places * splits + split
        tl.store(log_sum_ptr + partials, maximum + tl.log2(total), mask=valid)
        tl.store(partial_ptr + partials[:, None] * rank + dim[None, :], acc, mask=mask)


launch_latent = Launcher(latent_kernel)


def latent_attention(
    q: Tensor,
    kv: LayerKV,
    cu_seqlens_q: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    max_seqlen_q: int,
    max_context: int,
    out: Tensor,
    splits: int | None = None,
) -> None:
    """Attention of chunks over their contexts, written to out [T, heads, rank]; ranks of up to 512.

    The latents of the chunks must be in the cache already. Arguments are those of `prefill_attention`, with a latent
    cache. A chunk of one token with a context of 0 is padding, whose output is zeros.
    """
    num_rows, heads, rank, width = context_lens.shape[0], q.shape[1], out.shape[2], q.shape[2]
    if num_rows == 0 or q.shape[0] == 0:
        return
    capability, num_sms = device_limits(q.device)
    config = latent_config(capability, max_seqlen_q * heads)
    tiles = ceil_div(max_seqlen_q * heads, config.block_m)
    if splits is None:
        programs = min(num_rows * tiles, q.shape[0] * heads // config.block_m + num_rows)
        choose = decode_splits if max_seqlen_q == 1 else prefill_splits
        splits = choose(programs, max_context, config.programs_per_sm * num_sms)
    partial, log_sum = empty_partials(out, splits) if splits > 1 else (out, out)
    launch_latent(
        (splits, tiles, num_rows), q, kv.keys, cu_seqlens_q, context_lens, block_tables, out, partial, log_sum,
        scale * LOG2_E, q.stride(0), out.stride(0), block_tables.stride(0), splits,
        heads=heads, rank=rank, rope=width - rank, block_size=kv.keys.shape[1], block_m=config.block_m,
        block_n=config.block_n, block_r=max(16, next_power_of_2(rank)),
        block_d=max(16, next_power_of_2(width - rank)), min_split=MIN_SPLIT_TOKENS, one_split=splits == 1,
        interpreted=INTERPRETED, num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    if splits > 1:
        join_splits(partial, log_sum, out)


def one_token_each(context_lens: Tensor) -> Tensor:
    """Bounds of chunks of one token, int32[rows + 1]."""
    return torch.arange(context_lens.shape[0] + 1, dtype=torch.int32, device=context_lens.device)
