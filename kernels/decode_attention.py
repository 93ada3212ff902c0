"""Paged attention of one new token per sequence, in Triton (flash-decoding; Dao et al. 2023).

Each context is split over several programs, so that even a small batch fills the device. A program writes the output
over its split (the partial) and log2 of the sum of its softmax weights; a second kernel joins the partials. One program
handles all query heads of a KV head, so that every key and value is read once:

    grid (batch, kv_heads, splits)       q [group -> 16, head_dim] x K [block_n, head_dim] -> partial, log-sum
    grid (batch, heads)                  join the partials of a row's splits
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kernels.kv_integers import BITS, load_integers
from kernels.launch import Launcher
from kernels.runtime import INTERPRETED, Value, ceil_div, constexpr, next_power_of_2, tl, triton

MIN_SPLIT_TOKENS = 128
MAX_SPLIT_TOKENS = 1024
MAX_SPLITS = 128
PROGRAMS_PER_SM = 4
MAX_PROGRAMS_PER_SM = 64
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class DecodeConfig:
    """Compile-time choices of the decode kernel."""

    block_n: int
    block_d: int
    block_g: int
    num_warps: int
    num_stages: int


def decode_config(head_dim: int, group_size: int, element_size: int, quantized: bool = False) -> DecodeConfig:
    """Choices that give tiles of 16 KB of K and of V: several programs fit on a multiprocessor, none spills registers.

    head_dim: 1..256; group_size: query heads per KV head; element_size: bytes of an element of q, the dtype of the
    matrix products; quantized: whether the cache is in float8 or integers.
    """
    block_d = max(16, next_power_of_2(head_dim))
    row_bytes = block_d * element_size
    block_n = min(max(16384 // row_bytes, 16), 64 if quantized else 128)  # converting takes registers
    warps = 8 if row_bytes > 512 or quantized else 4
    return DecodeConfig(block_n, block_d, max(16, next_power_of_2(group_size)), num_warps=warps, num_stages=3)


def num_splits(batch: int, kv_heads: int, max_context: int, num_sms: int) -> int:
    """Number of splits of each context: enough to fill the device, and more for long contexts, to balance the load.

    max_context: upper bound of the contexts. The number depends on this bound only, not on the contexts themselves, so
    that it holds for all replays of a CUDA graph.
    """
    rows = max(1, batch * kv_heads)
    filling = ceil_div(PROGRAMS_PER_SM * num_sms, rows)
    balancing = min(ceil_div(max_context, MAX_SPLIT_TOKENS), max(1, MAX_PROGRAMS_PER_SM * num_sms // rows))
    return max(1, min(max(filling, balancing), ceil_div(max_context, MIN_SPLIT_TOKENS), MAX_SPLITS))


@triton.jit
def split_length(context: Value, splits: Value, min_split: constexpr, block_n: constexpr) -> Value:
    """Tokens of each split of a context: a multiple of block_n and at least min_split."""
    return tl.maximum(tl.cdiv(tl.cdiv(context, splits), block_n) * block_n, min_split)


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
    interpreted: constexpr,
) -> None:
    """One program computes one split of one sequence for one KV head; qk_scale is the softmax scale times log2(e)."""
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(context_lens_ptr + row)
    if one_split:
        start = 0
        end = context
    else:
        length = split_length(context, splits, min_split, block_n)
        start = split * length
        end = tl.minimum(start + length, context)
        if start >= context:
            return

    lanes, dim, group = tl.arange(0, block_n), tl.arange(0, block_d), tl.arange(0, block_g)
    heads = kv_head * group_size + group
    q_mask = (group < group_size)[:, None] & (dim < head_dim)[None, :]
    q = tl.load(q_ptr + row * q_stride + heads[:, None] * head_dim + dim[None, :], mask=q_mask, other=0.0)
    if interpreted:
        q = q.to(tl.float32)
    if quantized:  # the scale of the keys is applied to the scores, the scale of the values to the output
        qk_scale *= tl.load(kv_scales_ptr + kv_head)
    table_ptr = block_tables_ptr + row * table_stride
    token_stride: constexpr = kv_heads * head_dim
    head_offsets = kv_head * head_dim + dim
    maximum = tl.full([block_g], float("-inf"), tl.float32)
    total = tl.zeros([block_g], tl.float32)
    acc = tl.zeros([block_g, block_d], tl.float32)
    for first in range(start, end, block_n):
        positions = first + lanes
        inside = positions < end
        blocks = tl.load(table_ptr + positions // block_size, mask=inside, other=0).to(tl.int64)
        slots = blocks * block_size + positions % block_size
        if bits > 0:
            rows = slots * kv_heads + kv_head
            k, k_scales = load_integers(k_cache_ptr, rows, dim, inside, head_dim, bits)
            v, v_scales = load_integers(v_cache_ptr, rows, dim, inside, head_dim, bits)
        else:
            offsets = slots[:, None] * token_stride + head_offsets[None, :]
            mask = inside[:, None] & (dim < head_dim)[None, :]
            k = tl.load(k_cache_ptr + offsets, mask=mask, other=0.0)
            v = tl.load(v_cache_ptr + offsets, mask=mask, other=0.0)
        if interpreted or quantized or bits > 0:
            k, v = k.to(q.dtype), v.to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * qk_scale
        if bits > 0:
            scores *= k_scales[None, :]
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_maximum[:, None])
        shrink = tl.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(weights, axis=1)
        if bits > 0:
            weights *= v_scales[None, :]
        acc = tl.dot(weights.to(v.dtype), v, acc=acc * shrink[:, None], input_precision="tf32x3")
        maximum = new_maximum

    if quantized:
        acc *= tl.load(kv_scales_ptr + kv_heads + kv_head)
    # A padded row has an empty context, hence total 0: its output is zeros.
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    if one_split:
        places = row * out_stride + heads[:, None] * head_dim + dim[None, :]
        tl.store(out_ptr + places, acc.to(out_ptr.dtype.element_ty), mask=q_mask)
    else:
        partials = (row * kv_heads * group_size + heads) * splits + split
        tl.store(log_sum_ptr + partials, maximum + tl.log2(total), mask=group < group_size)
        tl.store(partial_ptr + partials[:, None] * head_dim + dim[None, :], acc, mask=q_mask)


@triton.jit(do_not_specialize=["splits"])
def join_splits_kernel(
    partial_ptr: Value,
    log_sum_ptr: Value,
    context_lens_ptr: Value,
    out_ptr: Value,
    out_stride: Value,
    splits: Value,
    head_dim: constexpr,
    block_n: constexpr,
    block_d: constexpr,
    block_s: constexpr,
    min_split: constexpr,
) -> None:
    """One program joins the partials of one head of one sequence: their average, weighted by their sums."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    context = tl.load(context_lens_ptr + row)
    used = tl.cdiv(context, split_length(context, splits, min_split, block_n))
    dim = tl.arange(0, block_d)
    base = (row * tl.num_programs(1) + head) * splits
    maximum = float("-inf")
    total = 0.0
    acc = tl.zeros([block_d], tl.float32)
    for first in range(0, used, block_s):
        split = first + tl.arange(0, block_s)
        log_sums = tl.load(log_sum_ptr + base + split, mask=split < used, other=float("-inf"))
        mask = (split < used)[:, None] & (dim < head_dim)[None, :]
        partials = tl.load(partial_ptr + (base + split)[:, None] * head_dim + dim[None, :], mask=mask, other=0.0)
        new_maximum = tl.maximum(maximum, tl.max(log_sums, axis=0))
        weights = tl.exp2(log_sums - new_maximum)
        shrink = tl.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(weights, axis=0)
        acc = acc * shrink + tl.sum(partials * weights[:, None], axis=0)
        maximum = new_maximum
    acc = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + row * out_stride + head * head_dim + dim, acc.to(out_ptr.dtype.element_ty), mask=dim < head_dim)


launch_decode, launch_join_splits = Launcher(decode_kernel), Launcher(join_splits_kernel)


@lru_cache(maxsize=8)
def _num_sms(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    max_context: int,
    out: Tensor | None = None,
    splits: int | None = None,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Attention of one new token per sequence over its context -> [B, heads, head_dim].

    The key and value of the new token must be in the cache already.

    q, out: [B, heads, head_dim], last two dimensions contiguous, any stride between rows.
    k_cache, v_cache: [num_blocks, block_size, kv_heads, head_dim], contiguous; float32, float16 or bfloat16, as q, or
    float8 with kv_scales (`kernels.kv_store`), or integers (`kernels.kv_integers`).
    context_lens: int32[B]; 0 marks a padded row, whose output is zeros. block_tables: int32[B, max_blocks].
    max_context: upper bound of context_lens. splits: splits of each context; None takes `num_splits`.
    Launches without synchronising, so it can be captured in a CUDA graph.
    """
    batch, heads, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if batch == 0:
        return out
    bits = BITS.get(k_cache.dtype, 0)
    kv_heads, group_size = k_cache.shape[2], heads // k_cache.shape[2]
    splits = num_splits(batch, kv_heads, max_context, _num_sms(q.device)) if splits is None else splits
    config = decode_config(head_dim, group_size, q.element_size(), kv_scales is not None or bits > 0)
    partial, log_sum = out, out
    if splits > 1:
        partial = torch.empty(batch, heads, splits, head_dim, dtype=torch.float32, device=q.device)
        log_sum = torch.empty(batch, heads, splits, dtype=torch.float32, device=q.device)
    launch_decode(
        (batch, kv_heads, splits),
        q,
        k_cache,
        v_cache,
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
        context_lens if kv_scales is None else kv_scales,
        kv_heads=kv_heads,
        group_size=group_size,
        head_dim=head_dim,
        block_size=k_cache.shape[1],
        block_n=config.block_n,
        block_d=config.block_d,
        block_g=config.block_g,
        min_split=MIN_SPLIT_TOKENS,
        one_split=splits == 1,
        quantized=kv_scales is not None,
        bits=bits,
        interpreted=INTERPRETED,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    if splits > 1:
        launch_join_splits(
            (batch, heads), partial, log_sum, context_lens, out, out.stride(0), splits, head_dim=head_dim,
            block_n=config.block_n, block_d=config.block_d, block_s=8, min_split=MIN_SPLIT_TOKENS, num_warps=1,
        )  # fmt: skip
    return out
