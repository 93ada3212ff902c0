"""Contexts split over several programs, so that few rows of queries fill the device too (flash-decoding; Dao 2023).

A program of an attention kernel writes the output over its split (the partial) and log2 of the sum of its softmax
weights, which is -inf if the queries see no key of the split. A second kernel joins the partials.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from kernels.launch import Launcher
from kernels.runtime import Value, ceil_div, constexpr, next_power_of_2, tl, triton

MIN_SPLIT_TOKENS = 128
MAX_SPLIT_TOKENS = 1024
MAX_SPLITS = 128
MAX_WAVES = 16
STARTUP_TOKENS = 64
"""The work of starting a program and joining its partial, in tokens of context."""


@lru_cache(maxsize=1024)
def decode_splits(rows: int, max_context: int, slots: int) -> int:
    """Number of splits of each context in a decode step: the one that is done first if contexts are of equal length.

    rows: sequences times KV heads; slots: programs that run on the device at once; max_context: upper bound of the
    contexts. The number depends on this bound only, not on the contexts themselves, so that it holds for all replays of
    a CUDA graph. Long contexts take more splits, which balances the load between contexts of different lengths.
    """
    most = min(ceil_div(max(max_context, 1), MIN_SPLIT_TOKENS), MAX_SPLITS)
    least = max(1, min(ceil_div(max(max_context, 1), MAX_SPLIT_TOKENS), MAX_WAVES * slots // rows, most))

    def time(splits: int) -> int:
        return ceil_div(rows * splits, slots) * (ceil_div(max_context, splits) + STARTUP_TOKENS)

    return min(range(least, most + 1), key=time)


def prefill_splits(programs: int, max_context: int, slots: int) -> int:
    """Number of splits of the contexts of prompt chunks: 1 unless `programs` fill less than half of the `slots`."""
    return max(1, min(slots // programs, max_context // MIN_SPLIT_TOKENS, MAX_SPLITS))


@triton.jit
def split_range(
    first: Value, last: Value, split: Value, splits: Value, min_split: constexpr, block_n: constexpr
) -> Value:
    """(start, end) of a split of the keys from `first` to before `last`: equal splits of a multiple of block_n tokens
    and at least min_split."""
    length = tl.maximum(tl.cdiv(tl.cdiv(last - first, splits), block_n) * block_n, min_split)
    start = first + split * length
    return start, tl.minimum(start + length, last)


@triton.jit(do_not_specialize=["splits"])  # changes from step to step, and compiling takes a second
def join_splits_kernel(
    partial_ptr: Value,
    log_sum_ptr: Value,
    out_ptr: Value,
    out_stride: Value,
    splits: Value,
    head_dim: constexpr,
    block_d: constexpr,
    block_s: constexpr,
    max_splits: constexpr,
) -> None:
    """One program joins the partials of one head of one token: their average, weighted by their sums.

    Only the first splits have keys that the token sees: with a window too, as a tile of queries has at most
    MIN_SPLIT_TOKENS rows. A token that sees no key at all is padding: its output is 0.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    base = (token * tl.num_programs(1) + head) * splits
    log_sum_ptr += base
    every, dim = tl.arange(0, max_splits), tl.arange(0, block_d)
    log_sums = tl.load(log_sum_ptr + every, mask=every < splits, other=float("-inf"))
    used = tl.sum((log_sums != float("-inf")).to(tl.int32), axis=0)
    maximum = tl.max(log_sums, axis=0)
    total = 0.0
    acc = tl.zeros([block_d], tl.float32)
    for first in range(0, used, block_s):
        split = first + tl.arange(0, block_s)
        mask = (split < used)[:, None] & (dim < head_dim)[None, :]
        partials = tl.load(partial_ptr + (base + split)[:, None] * head_dim + dim[None, :], mask=mask, other=0.0)
        weights = tl.exp2(tl.load(log_sum_ptr + split, mask=split < used, other=float("-inf")) - maximum)
        total += tl.sum(weights, axis=0)
        acc += tl.sum(partials * weights[:, None], axis=0)
    acc = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(
        out_ptr + token * out_stride + head * head_dim + dim, acc.to(out_ptr.dtype.element_ty), mask=dim < head_dim
    )


launch_join_splits = Launcher(join_splits_kernel)


def empty_partials(q: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """(partials float32[T, heads, splits, head_dim], log-sums float32[T, heads, splits]) of q [T, heads, head_dim]."""
    tokens, heads, head_dim = q.shape
    partial = torch.empty(tokens, heads, splits, head_dim, dtype=torch.float32, device=q.device)
    return partial, torch.empty(tokens, heads, splits, dtype=torch.float32, device=q.device)


def join_splits(partial: Tensor, log_sum: Tensor, out: Tensor) -> None:
    """Join the partials into out [T, heads, head_dim]."""
    tokens, heads, splits, head_dim = partial.shape
    launch_join_splits(
        (tokens, heads),
        partial,
        log_sum,
        out,
        out.stride(0),
        splits,
        head_dim=head_dim,
        block_d=max(16, next_power_of_2(head_dim)),
        block_s=8,
        max_splits=MAX_SPLITS,
        num_warps=1,
    )
