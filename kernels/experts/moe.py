"""Mixture of experts: route each token to its best experts, run them, and sum their outputs, weighted by the router."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.activation import Clamp, silu_and_mul, silu_and_mul_reference
from kernels.experts.expert_choice import choose_experts
from kernels.experts.expert_products import ExpertWeights, Fp8Stack, grouped_product
from kernels.experts.moe_routing import route_triton
from kernels.launch import Launcher
from kernels.runtime import Value, ceil_div, constexpr, next_power_of_2, runs_triton, tl, triton

_MANY_PAIRS = 256


class Biases(NamedTuple):
    """Biases of experts, [E, 2 * I] and [E, H], and the activation of experts that have them."""

    w13: Tensor
    w2: Tensor
    clamp: Clamp


def fused_moe(
    x: Tensor,
    router_logits: Tensor,
    w13: ExpertWeights,
    w2: ExpertWeights,
    top_k: int,
    renormalize: bool,
    biases: Biases | None = None,
) -> Tensor:
    """The weighted sum of the outputs of each token's `top_k` best experts, which are gated MLPs.

    x: [T, H]; router_logits: [T, E]; w13: [E, 2 * I, H], gate rows first; w2: [E, H, I] -> [T, H] of x's dtype.
    The weights are the softmax of the router's logits over all experts, in float32; `renormalize` divides the weights
    of a token's chosen experts by their sum.
    """
    if runs_triton(x):
        return fused_moe_triton(x, router_logits, w13, w2, top_k, renormalize, biases)
    return fused_moe_reference(x, router_logits, w13, w2, top_k, renormalize, biases)


def fused_moe_reference(
    x: Tensor,
    router_logits: Tensor,
    w13: ExpertWeights,
    w2: ExpertWeights,
    top_k: int,
    renormalize: bool,
    biases: Biases | None = None,
) -> Tensor:
    """PyTorch version of `fused_moe`, one expert after the other; counts on the host, so on a GPU it synchronises."""
    weights, experts = choose_experts(router_logits, top_k, renormalize)
    order = experts.flatten().argsort(stable=True)
    counts = experts.flatten().bincount(minlength=w13.shape[0]).tolist()
    tokens = order // top_k
    sorted_x = x.index_select(0, tokens)
    outputs = torch.empty_like(sorted_x)
    b13, b2, clamp = biases or (None, None, None)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            gate_up = _product_of_one(sorted_x[start : start + count], w13, expert, b13)
            hidden = silu_and_mul_reference(gate_up, clamp)
            outputs[start : start + count] = _product_of_one(hidden, w2, expert, b2)
            start += count
    scaled = outputs.float().mul_(weights.flatten().index_select(0, order).unsqueeze(1))
    result = torch.zeros(x.shape, dtype=torch.float32, device=x.device).index_add_(0, tokens, scaled)
    return result.to(x.dtype)


def _product_of_one(x: Tensor, weights: ExpertWeights, expert: int, biases: Tensor | None) -> Tensor:
    if isinstance(weights, Fp8Stack):
        return weights.linear_reference(x, expert)
    return functional.linear(x, weights[expert], None if biases is None else biases[expert])


def moe_block_m(num_pairs: int, num_experts: int, is_half: bool) -> int:
    """Rows of a tile: the average number of pairs per expert, rounded up to a power of two, at least 16, at most 64.

    Many pairs of an expert in 16 bits take 128 rows (H100, 512 pairs each: a third less time).
    """
    average = num_pairs // num_experts
    if is_half and average >= _MANY_PAIRS:
        return 128
    return min(max(next_power_of_2(max(1, average)), 16), 64)


@triton.jit
def sum_choices_kernel(down_ptr: Value, out_ptr: Value, top_k: constexpr, hidden: constexpr, block: constexpr) -> None:
    """One program sums a token's rows of all its choices, in `block` columns."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    mask = columns < hidden
    total = tl.zeros([block], tl.float32)
    for choice in tl.static_range(top_k):
        down = tl.load(down_ptr + (token * top_k + choice) * hidden + columns, mask=mask, other=0.0)
        total += down.to(tl.float32)
    tl.store(out_ptr + token * hidden + columns, total.to(out_ptr.dtype.element_ty), mask=mask)


launch_sum_choices = Launcher(sum_choices_kernel)


def fused_moe_triton(
    x: Tensor,
    router_logits: Tensor,
    w13: ExpertWeights,
    w2: ExpertWeights,
    top_k: int,
    renormalize: bool,
    biases: Biases | None = None,
) -> Tensor:
    """Triton version of `fused_moe`: routing, grouped GEMM, activation, grouped GEMM, sum over each token's choices."""
    num_tokens, hidden = x.shape
    num_experts, width = w13.shape[0], w2.shape[2]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if num_tokens == 0:
        return out
    block_m = moe_block_m(num_tokens * top_k, num_experts, isinstance(w13, Tensor) and w13.element_size() == 2)
    routing = route_triton(router_logits, top_k, renormalize, block_m)
    gate_up = torch.empty(num_tokens * top_k, 2 * width, dtype=x.dtype, device=x.device)
    b13, b2, clamp = biases or (None, None, None)
    grouped_product(x.contiguous(), w13, gate_up, routing, top_k, False, block_m, b13)
    down = torch.empty(num_tokens * top_k, hidden, dtype=x.dtype, device=x.device)
    grouped_product(silu_and_mul(gate_up, clamp), w2, down, routing, 1, True, block_m, b2)
    block = min(next_power_of_2(hidden), 1024)
    grid = num_tokens, ceil_div(hidden, block)
    launch_sum_choices(grid, down, out, top_k=top_k, hidden=hidden, block=block, num_warps=4)
    return out
