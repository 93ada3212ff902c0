"""Routes tokens to experts: the experts of each token, their weights, and the tiles of the grouped matrix products.

A pair is a token and one of its top_k choices. The products need the pairs sorted by expert, and each expert's pairs
cut into tiles. No value is read back on the host, so that routing can be captured in a CUDA graph.

    up to 32 tokens (of 128 experts)   one program does everything: `route_small_kernel`
    more                               `choose_kernel` writes the choices, and how many pairs each program's tokens send
                                       to each expert; `place_kernel` adds these counts up and writes pairs and tiles

A token chooses an expert at most once, so the place of a pair among its expert's pairs is the number of earlier tokens
with that expert: a cumulative sum over tokens, which makes the order that of a stable sort.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.experts.expert_choice import choose, choose_experts
from kernels.launch import Launcher
from kernels.runtime import Value, ceil_div, constexpr, next_power_of_2, tl, triton

_TILES = 128  # unused tiles written at a time
_MOST_PROGRAMS = 128
_SMALL_SIZES = (1, 8, 32, 256)  # tokens that `route_small_kernel` is compiled for
_SMALL_ELEMENTS, _LARGE_ELEMENTS = 4096, 2048  # tokens times experts that one program looks at at once


@dataclass(frozen=True)
class Routing:
    """Where each of T tokens goes, and which rows each tile of the grouped products computes.

    Pairs are sorted by expert, and the pairs of each expert are cut into tiles of block_m rows, of which the last may
    be partly filled. The number of tiles is an upper bound for any routing, so that the host need not know the counts.
    """

    weights: Tensor
    """float32[T, top_k]: of each token's choices, best first."""
    order: Tensor
    """int32[T * top_k]: the pairs, sorted by expert, then by token; pair p is choice p % top_k of token p // top_k."""
    tile_experts: Tensor
    """int32[tiles]: the expert of each tile; the number of experts for unused tiles, which come last."""
    tile_starts: Tensor
    """int32[tiles]: index in `order` of each tile's first pair; 0 for unused tiles."""
    expert_ends: Tensor
    """int32[experts]: index in `order` after each expert's last pair."""


def num_tiles(num_pairs: int, num_experts: int, block_m: int) -> int:
    """The most tiles that any routing of `num_pairs` pairs needs."""
    return ceil_div(num_pairs, block_m) + min(num_experts, num_pairs)


def route_reference(router_logits: Tensor, top_k: int, renormalize: bool, block_m: int) -> Routing:
    """PyTorch version of `route_triton`."""
    num_experts = router_logits.shape[1]
    weights, experts = choose_experts(router_logits, top_k, renormalize)
    ordered, order = experts.flatten().sort(stable=True)
    places = torch.searchsorted(ordered, torch.arange(num_experts + 1, device=ordered.device))
    counts = (places[1:] - places[:-1] + block_m - 1) // block_m
    tile_ends = counts.cumsum(0)
    tiles = torch.arange(num_tiles(ordered.shape[0], num_experts, block_m), device=ordered.device)
    expert = torch.searchsorted(tile_ends, tiles, right=True)
    safe = expert.clamp(max=num_experts - 1)
    starts = places[safe] + (tiles - tile_ends[safe] + counts[safe]) * block_m
    starts = torch.where(expert < num_experts, starts, 0)
    return Routing(weights, *(each.to(torch.int32) for each in (order, expert, starts, places[1:])))


@triton.jit
def place(order_ptr: Value, choice: Value, tokens: Value, starts: Value, top_k: constexpr) -> Value:
    """Write the pairs of a tile of tokens, those of each expert from `starts` on; returns the places after them."""
    chosen = (choice >= 0).to(tl.int32)
    places = starts[None, :] + tl.cumsum(chosen, axis=0) - chosen
    tl.store(order_ptr + places, tokens[:, None] * top_k + choice, mask=choice >= 0)
    return starts + tl.sum(chosen, axis=0)


@triton.jit
def store_tiles(
    tile_experts_ptr: Value,
    tile_starts_ptr: Value,
    ends_ptr: Value,
    counts: Value,
    ends: Value,
    experts: Value,
    tiles: Value,
    program: Value,
    programs: Value,
    num_experts: constexpr,
    block_m: constexpr,
    turns: constexpr,
    block: constexpr,
    blocks: constexpr,
) -> None:
    """Write this program's part of the tile table: in every turn one tile of each expert; then its unused tiles."""
    if program == 0:
        tl.store(ends_ptr + experts, ends, mask=experts < num_experts)
    tile_counts = (counts + block_m - 1) // block_m
    first_tiles = tl.cumsum(tile_counts, axis=0) - tile_counts
    for turn in range(0, turns):
        nth = turn * programs + program
        places = first_tiles + nth
        tl.store(tile_experts_ptr + places, experts, mask=nth < tile_counts)
        tl.store(tile_starts_ptr + places, ends - counts + nth * block_m, mask=nth < tile_counts)
    used = tl.sum(tile_counts, axis=0)
    for i in range(0, blocks):
        tile = (i * programs + program) * block + tl.arange(0, block)
        unused = (tile >= used) & (tile < tiles)
        tl.store(tile_experts_ptr + tile, tl.zeros_like(tile) + num_experts, mask=unused)
        tl.store(tile_starts_ptr + tile, tl.zeros_like(tile), mask=unused)


@triton.jit(do_not_specialize=["num_tokens", "tiles"])
def route_small_kernel(
    logits_ptr: Value,
    weights_ptr: Value,
    order_ptr: Value,
    tile_experts_ptr: Value,
    tile_starts_ptr: Value,
    expert_ends_ptr: Value,
    num_tokens: Value,
    tiles: Value,
    logits_stride: Value,
    num_experts: constexpr,
    top_k: constexpr,
    renormalize: constexpr,
    block_m: constexpr,
    block_t: constexpr,
    block_e: constexpr,
    block_k: constexpr,
    turns: constexpr,
    block: constexpr,
    blocks: constexpr,
) -> None:
    """One program routes all tokens."""
    tokens, experts = tl.arange(0, block_t), tl.arange(0, block_e)
    choice, _ = choose(
        logits_ptr, weights_ptr, tokens, experts, num_tokens, logits_stride, num_experts, top_k, block_k, renormalize
    )
    counts = tl.sum((choice >= 0).to(tl.int32), axis=0)
    ends = tl.cumsum(counts, axis=0)
    place(order_ptr, choice, tokens, ends - counts, top_k)
    store_tiles(
        tile_experts_ptr, tile_starts_ptr, expert_ends_ptr, counts, ends, experts, tiles, 0, 1,
        num_experts, block_m, turns, block, blocks,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens"])
def choose_kernel(
    logits_ptr: Value,
    weights_ptr: Value,
    choices_ptr: Value,
    counts_ptr: Value,
    num_tokens: Value,
    logits_stride: Value,
    num_experts: constexpr,
    top_k: constexpr,
    renormalize: constexpr,
    block_t: constexpr,
    block_e: constexpr,
    block_k: constexpr,
    rounds: constexpr,
) -> None:
    """One program chooses the experts of `rounds` times block_t tokens, and counts its tokens of each expert."""
    program = tl.program_id(0)
    experts, columns = tl.arange(0, block_e), tl.arange(0, block_k)
    counts = tl.zeros([block_e], tl.int32)
    for i in range(0, rounds):
        tokens = (program * rounds + i) * block_t + tl.arange(0, block_t)
        choice, found = choose(
            logits_ptr, weights_ptr, tokens, experts, num_tokens, logits_stride, num_experts, top_k, block_k,
            renormalize,
        )  # fmt: skip
        mask = (tokens < num_tokens)[:, None] & (columns < top_k)[None, :]
        tl.store(choices_ptr + tokens[:, None] * top_k + columns[None, :], found, mask=mask)
        counts += tl.sum((choice >= 0).to(tl.int32), axis=0)
    tl.store(counts_ptr + program * num_experts + experts, counts, mask=experts < num_experts)


@triton.jit(do_not_specialize=["num_tokens", "tiles"])
def place_kernel(
    choices_ptr: Value,
    counts_ptr: Value,
    order_ptr: Value,
    tile_experts_ptr: Value,
    tile_starts_ptr: Value,
    expert_ends_ptr: Value,
    num_tokens: Value,
    tiles: Value,
    num_experts: constexpr,
    top_k: constexpr,
    block_m: constexpr,
    block_t: constexpr,
    block_e: constexpr,
    rounds: constexpr,
    most_programs: constexpr,
    turns: constexpr,
    block: constexpr,
    blocks: constexpr,
) -> None:
    """One program places the pairs of the tokens that the same program of `choose_kernel` chose for."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    experts = tl.arange(0, block_e)
    counts, before = tl.zeros([block_e], tl.int32), tl.zeros([block_e], tl.int32)
    for first in range(0, most_programs, 8):
        others = first + tl.arange(0, 8)
        mask = (others < programs)[:, None] & (experts < num_experts)[None, :]
        theirs = tl.load(counts_ptr + others[:, None] * num_experts + experts[None, :], mask=mask, other=0)
        counts += tl.sum(theirs, axis=0)
        before += tl.sum(tl.where((others < program)[:, None], theirs, 0), axis=0)
    ends = tl.cumsum(counts, axis=0)
    starts = ends - counts + before
    for i in range(0, rounds):
        tokens = (program * rounds + i) * block_t + tl.arange(0, block_t)
        choice = tl.full([block_t, block_e], -1, tl.int32)
        for k in tl.static_range(top_k):
            expert = tl.load(choices_ptr + tokens * top_k + k, mask=tokens < num_tokens, other=-1)
            choice = tl.where(experts[None, :] == expert[:, None], k, choice)
        starts = place(order_ptr, choice, tokens, starts, top_k)
    store_tiles(
        tile_experts_ptr, tile_starts_ptr, expert_ends_ptr, counts, ends, experts, tiles, program,
        programs, num_experts, block_m, turns, block, blocks,
    )  # fmt: skip


launch_route_small, launch_choose, launch_place = map(Launcher, (route_small_kernel, choose_kernel, place_kernel))


def route_triton(router_logits: Tensor, top_k: int, renormalize: bool, block_m: int) -> Routing:
    """Route T >= 1 tokens by their logits, [T, experts] with contiguous rows, in one launch or in two."""
    tokens, num_experts = router_logits.shape
    device = router_logits.device
    tiles = num_tiles(tokens * top_k, num_experts, block_m)
    weights = torch.empty(tokens, top_k, dtype=torch.float32, device=device)
    order, experts, starts, ends = (
        torch.empty(size, dtype=torch.int32, device=device) for size in (tokens * top_k, tiles, tiles, num_experts)
    )
    routing = Routing(weights, order, experts, starts, ends)
    block_e, block_k = next_power_of_2(num_experts), next_power_of_2(top_k)
    chosen = {"num_experts": num_experts, "top_k": top_k, "renormalize": renormalize}
    blocks = {"block_e": block_e, "block_k": block_k}
    block_t = small_size(tokens, block_e)
    if block_t:
        launch_route_small(
            (1,), router_logits, weights, order, experts, starts, ends, tokens, tiles, router_logits.stride(0),
            **chosen, **blocks, block_m=block_m, block_t=block_t, turns=ceil_div(block_t, block_m), block=_TILES,
            blocks=ceil_div(num_tiles(block_t * top_k, num_experts, block_m), _TILES),
            num_warps=num_warps(block_t * block_e),
        )  # fmt: skip
        return routing
    block_t = min(max(_LARGE_ELEMENTS // block_e, 1), 64)
    rounds = next_power_of_2(ceil_div(tokens, block_t * _MOST_PROGRAMS))
    programs = ceil_div(tokens, block_t * rounds)
    choices = torch.empty(tokens, top_k, dtype=torch.int32, device=device)
    counts = torch.empty(programs, num_experts, dtype=torch.int32, device=device)
    warps = num_warps(block_t * block_e)
    launch_choose(
        (programs,), router_logits, weights, choices, counts, tokens, router_logits.stride(0), **chosen, **blocks,
        block_t=block_t, rounds=rounds, num_warps=warps,
    )  # fmt: skip
    launch_place(
        (programs,), choices, counts, order, experts, starts, ends, tokens, tiles, num_experts=num_experts,
        top_k=top_k, block_m=block_m, block_t=block_t, block_e=block_e, rounds=rounds, most_programs=_MOST_PROGRAMS,
        turns=next_power_of_2(ceil_div(tokens, block_m * programs)), block=_TILES,
        blocks=next_power_of_2(ceil_div(tiles, _TILES * programs)), num_warps=warps,
    )  # fmt: skip
    return routing


def small_size(num_tokens: int, block_e: int) -> int:
    """The number of tokens that `route_small_kernel` is compiled for, at least `num_tokens`; 0 if they are too many."""
    fitting = (size for size in _SMALL_SIZES if num_tokens <= size and size * block_e <= _SMALL_ELEMENTS)
    return next(fitting, 0)


def num_warps(elements: int) -> int:
    """Warps of a program that looks at `elements` logits at once: 8 logits per thread, or 16 at most."""
    return min(max(elements // 256, 1), 8)
