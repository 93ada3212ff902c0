"""Mixture of experts: route each token to its best experts, run them, and sum their outputs, weighted by the router."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.activation import silu_and_mul, silu_and_mul_reference
from kernels.launch import Launcher
from kernels.runtime import INTERPRETED, Value, ceil_div, constexpr, next_power_of_2, runs_triton, tl, triton


def fused_moe(x: Tensor, router_logits: Tensor, w13: Tensor, w2: Tensor, top_k: int, renormalize: bool) -> Tensor:
    """The weighted sum of the outputs of each token's `top_k` best experts, which are gated MLPs.

    x: [T, H]; router_logits: [T, E]; w13: [E, 2 * I, H], gate rows first; w2: [E, H, I] -> [T, H] of x's dtype.
    The weights are the softmax of the router's logits over all experts, in float32; `renormalize` divides the weights
    of a token's chosen experts by their sum.
    """
    if runs_triton(x):
        return fused_moe_triton(x, router_logits, w13, w2, top_k, renormalize)
    return fused_moe_reference(x, router_logits, w13, w2, top_k, renormalize)


def route(router_logits: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """(weights float32[T, top_k], experts int64[T, top_k]) of each token."""
    weights, experts = router_logits.float().softmax(dim=-1).topk(top_k, dim=-1)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, experts


def fused_moe_reference(
    x: Tensor, router_logits: Tensor, w13: Tensor, w2: Tensor, top_k: int, renormalize: bool
) -> Tensor:
    """PyTorch version of `fused_moe`, one expert after the other; counts on the host, so on a GPU it synchronises."""
    weights, experts = route(router_logits, top_k, renormalize)
    order = experts.flatten().argsort(stable=True)
    counts = experts.flatten().bincount(minlength=w13.shape[0]).tolist()
    tokens = order // top_k
    sorted_x = x.index_select(0, tokens)
    outputs = torch.empty_like(sorted_x)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            hidden = silu_and_mul_reference(functional.linear(sorted_x[start : start + count], w13[expert]))
            outputs[start : start + count] = functional.linear(hidden, w2[expert])
            start += count
    scaled = outputs.float().mul_(weights.flatten().index_select(0, order).unsqueeze(1))
    result = torch.zeros(x.shape, dtype=torch.float32, device=x.device).index_add_(0, tokens, scaled)
    return result.to(x.dtype)


@dataclass(frozen=True)
class ExpertTiles:
    """Which rows each tile of the grouped GEMM computes, for T tokens with top_k experts each.

    A pair is a token and one of its top_k choices. Pairs are sorted by expert, and the pairs of each expert are cut
    into tiles of block_m rows, of which the last may be partly filled. The number of tiles is an upper bound for any
    routing, T * top_k / block_m + E, so that the host need not know the counts; unused tiles have expert E.
    """

    order: Tensor
    """int64[T * top_k]: the pairs, sorted by expert; pair p is choice p % top_k of token p // top_k."""
    experts: Tensor
    """int32[tiles]: the expert of each tile."""
    starts: Tensor
    """int32[tiles]: index in `order` of each tile's first pair."""
    expert_ends: Tensor
    """int32[E]: index in `order` after each expert's last pair."""


def tile_experts(experts: Tensor, num_experts: int, block_m: int) -> ExpertTiles:
    """The tiles for `experts`, int64[T, top_k]; does not synchronise."""
    ordered, order = experts.flatten().sort(stable=True)
    bounds = torch.arange(num_experts + 1, device=experts.device)
    places = torch.searchsorted(ordered, bounds)
    counts = places[1:] - places[:-1]
    tile_ends = ((counts + block_m - 1) // block_m).cumsum(0)
    tiles = torch.arange(
        ceil_div(ordered.shape[0], block_m) + min(num_experts, ordered.shape[0]), device=experts.device
    )
    expert = torch.searchsorted(tile_ends, tiles, right=True)
    safe = expert.clamp(max=num_experts - 1)
    first_tile = tile_ends[safe] - (counts[safe] + block_m - 1) // block_m
    starts = places[safe] + (tiles - first_tile) * block_m
    return ExpertTiles(order, expert.to(torch.int32), starts.to(torch.int32), places[1:].to(torch.int32))


@triton.jit
def grouped_gemm_kernel(
    x_ptr: Value,
    weight_ptr: Value,
    out_ptr: Value,
    order_ptr: Value,
    tile_experts_ptr: Value,
    tile_starts_ptr: Value,
    expert_ends_ptr: Value,
    pair_weights_ptr: Value,
    x_divisor: constexpr,
    num_experts: constexpr,
    n_size: constexpr,
    k_size: constexpr,
    weighted: constexpr,
    block_m: constexpr,
    block_n: constexpr,
    block_k: constexpr,
    interpreted: constexpr,
) -> None:
    """One program computes out[pair] = x[pair // x_divisor] @ weight[expert].T for one tile and block_n columns.

    `weighted` multiplies each row by the router's weight of its pair.
    """
    tile = tl.program_id(1)
    expert = tl.load(tile_experts_ptr + tile).to(tl.int64)
    if expert >= num_experts:
        return
    places = tl.load(tile_starts_ptr + tile) + tl.arange(0, block_m)
    row_mask = places < tl.load(expert_ends_ptr + expert)
    pairs = tl.load(order_ptr + places, mask=row_mask, other=0)
    columns = tl.program_id(0) * block_n + tl.arange(0, block_n)
    column_mask = columns < n_size
    inner = tl.arange(0, block_k)
    x_ptrs = x_ptr + (pairs // x_divisor)[:, None] * k_size + inner[None, :]
    w_ptrs = weight_ptr + expert * n_size * k_size + columns[None, :] * k_size + inner[:, None]
    acc = tl.zeros([block_m, block_n], tl.float32)
    for first in range(0, k_size, block_k):
        k_mask = inner < k_size - first
        x = tl.load(x_ptrs + first, mask=row_mask[:, None] & k_mask[None, :], other=0.0)
        w = tl.load(w_ptrs + first, mask=k_mask[:, None] & column_mask[None, :], other=0.0)
        if interpreted:
            x, w = x.to(tl.float32), w.to(tl.float32)
        acc = tl.dot(x, w, acc=acc, input_precision="tf32x3")
    if weighted:
        acc *= tl.load(pair_weights_ptr + pairs, mask=row_mask, other=0.0)[:, None]
    mask = row_mask[:, None] & column_mask[None, :]
    tl.store(out_ptr + pairs[:, None] * n_size + columns[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


launch_grouped_gemm = Launcher(grouped_gemm_kernel)


def moe_block_m(num_pairs: int, num_experts: int) -> int:
    """Rows of a tile: the average number of pairs per expert, rounded up to a power of two, at least 16, at most 64."""
    return min(max(next_power_of_2(max(1, num_pairs // num_experts)), 16), 64)


def fused_moe_triton(
    x: Tensor, router_logits: Tensor, w13: Tensor, w2: Tensor, top_k: int, renormalize: bool
) -> Tensor:
    """Triton version of `fused_moe`: grouped GEMM, activation, grouped GEMM, then the sum over each token's choices."""
    num_tokens, hidden = x.shape
    num_experts, width = w13.shape[0], w2.shape[2]
    if num_tokens == 0:
        return torch.empty_like(x)
    weights, experts = route(router_logits, top_k, renormalize)
    block_m = moe_block_m(num_tokens * top_k, num_experts)
    tiles = tile_experts(experts, num_experts, block_m)
    gate_up = torch.empty(num_tokens * top_k, 2 * width, dtype=x.dtype, device=x.device)
    _grouped_gemm(x.contiguous(), w13, gate_up, tiles, weights, top_k, False, block_m)
    down = torch.empty(num_tokens * top_k, hidden, dtype=torch.float32, device=x.device)
    _grouped_gemm(silu_and_mul(gate_up), w2, down, tiles, weights, 1, True, block_m)
    return down.view(num_tokens, top_k, hidden).sum(dim=1).to(x.dtype)


def _grouped_gemm(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    tiles: ExpertTiles,
    pair_weights: Tensor,
    x_divisor: int,
    weighted: bool,
    block_m: int,
) -> None:
    num_experts, n_size, k_size = weight.shape
    block_n, block_k = 64, 64 if x.element_size() <= 2 else 32
    launch_grouped_gemm(
        (ceil_div(n_size, block_n), tiles.experts.shape[0]),
        x,
        weight,
        out,
        tiles.order,
        tiles.experts,
        tiles.starts,
        tiles.expert_ends,
        pair_weights,
        x_divisor=x_divisor,
        num_experts=num_experts,
        n_size=n_size,
        k_size=k_size,
        weighted=weighted,
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        interpreted=INTERPRETED,
        num_warps=4,
        num_stages=3,
    )
