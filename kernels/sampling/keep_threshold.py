"""The lowest logit that top-k and top-p keep, found by search instead of by sorting the vocabulary.

What is kept does not depend on an order among equal logits, so each filter is a threshold, exactly:

    top-k   the smallest t with      tokens above t  <  k                      (the k-th largest logit)
    top-p   the smallest t with      mass above t    <  p * mass of all that top-k keeps, or no token above t

Both conditions hold from some t on. The search fixes the bits of t from the highest on, two in each pass over the row,
on integers that are ordered as the floats are. Masses are sums of integers, exp((logit - largest) / temperature) times
2^42, so that they depend on no order of addition, and a row has the same threshold in every batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.launch import Launcher
from kernels.runtime import Value, constexpr, next_power_of_2, tl, triton

# Tokens looked at at once: the keys of float32 take more registers than those of bfloat16.
BLOCK, WIDE_BLOCK = 1024, 512
MASS_BITS = 42  # 2^42 times a vocabulary of 2^20 tokens fits into 63 bits


@triton.jit
def load_logits(row_ptr: Value, first: Value, vocabulary: constexpr, shift: constexpr, block: constexpr) -> Value:
    """(logits float32[block], keys int64[block]) from `first` on; keys are ordered as logits, from 0; -1 is outside.

    NaN is taken for -inf and -0 for 0. `shift` low bits, which say nothing more of the dtype's numbers, are left out.
    """
    places = first + tl.arange(0, block)
    inside = places < vocabulary
    x = tl.load(row_ptr + places, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    x = tl.where(x == 0.0, 0.0, x)
    bits = x.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (ordered.to(tl.int64) + 2147483648) >> shift
    return x, tl.where(inside, keys, -1)


@triton.jit
def logit_of(key: Value, shift: constexpr) -> Value:
    """The logit with this key; -inf for key 0, which no logit has."""
    low = tl.where(key < (2147483648 >> shift), (1 << shift) - 1, 0)  # of negative numbers, the low bits are ones
    ordered = (((key << shift) | low) - 2147483648).to(tl.int32)
    bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    return tl.where(key == 0, float("-inf"), bits.to(tl.float32, bitcast=True))


@triton.jit
def masses(x: Value, keys: Value, least: Value, largest: Value, temperature: Value, unit: constexpr) -> Value:
    """int64[block]: the masses of logits; 0 for keys below `least`."""
    chances = tl.where(x == largest, 1.0, tl.exp((x - largest) / temperature))
    return tl.where((keys >= least) & (x > float("-inf")), (chances * unit).to(tl.int64), 0)


@triton.jit
def search_key(
    row_ptr: Value,
    target: Value,
    least: Value,
    largest: Value,
    temperature: Value,
    vocabulary: constexpr,
    shift: constexpr,
    block: constexpr,
    unit: constexpr,
    by_mass: constexpr,
) -> Value:
    """The smallest key above which there are fewer tokens than `target`, or with `by_mass` less mass."""
    key = least * 0
    quarters = tl.arange(0, 4) + 1
    for step in range(0, (32 - shift) // 2):
        width = key * 0 + 1 << (30 - shift - 2 * step)
        bounds = key + quarters.to(tl.int64) * width - 1
        above = tl.zeros([block, 4], tl.int64)
        for first in range(0, vocabulary, block):
            x, keys = load_logits(row_ptr, first, vocabulary, shift, block)
            amounts = masses(x, keys, least, largest, temperature, unit) if by_mass else (keys >= 0).to(tl.int64)
            above += tl.where(keys[:, None] > bounds[None, :], amounts[:, None], 0)
        key += tl.sum((tl.sum(above, axis=0) >= target).to(tl.int64), axis=0) * width
    return key


@triton.jit
def keep_threshold_kernel(
    logits_ptr: Value,
    temperature_ptr: Value,
    top_k_ptr: Value,
    top_p_ptr: Value,
    out_ptr: Value,
    row_stride: Value,
    vocabulary: constexpr,
    shift: constexpr,
    block: constexpr,
    unit: constexpr,
    use_k: constexpr,
    use_p: constexpr,
) -> None:
    """One program finds the threshold of one row."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    temperature = tl.load(temperature_ptr + row)
    temperature = tl.where(temperature > 0, temperature, 1.0)
    key = row * 0
    if use_k:
        k = tl.load(top_k_ptr + row).to(tl.int64)
        if k > 0:
            k = tl.minimum(k, vocabulary)
            key = search_key(row_ptr, k, key, 0.0, temperature, vocabulary, shift, block, unit, False)
    if use_p:
        p = tl.load(top_p_ptr + row)
        if p < 1:
            highest = tl.full([block], float("-inf"), tl.float32)
            for first in range(0, vocabulary, block):
                x, _ = load_logits(row_ptr, first, vocabulary, shift, block)
                highest = tl.maximum(highest, x)
            largest = tl.max(highest, axis=0)
            sums = tl.zeros([block], tl.int64)
            for first in range(0, vocabulary, block):
                x, keys = load_logits(row_ptr, first, vocabulary, shift, block)
                sums += masses(x, keys, key, largest, temperature, unit)
            total = tl.sum(sums, axis=0)
            target = tl.ceil(p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
            target = tl.maximum(target, 1)
            found = search_key(row_ptr, target, key, largest, temperature, vocabulary, shift, block, unit, True)
            key = tl.maximum(key, found)
    tl.store(out_ptr + row, logit_of(key, shift))


launch_keep_threshold = Launcher(keep_threshold_kernel)


def keep_threshold_triton(
    logits: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None
) -> Tensor | None:
    """`kernels.sampling.sampler.keep_threshold` without sorting; logits: [S, V] of any float dtype. Triton."""
    if top_k is None and top_p is None:
        return None
    rows, vocabulary = logits.shape
    out = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows == 0:
        return out
    shift, block = (16, BLOCK) if logits.dtype == torch.bfloat16 else (0, WIDE_BLOCK)
    launch_keep_threshold(
        (rows,),
        logits,
        temperature,
        temperature if top_k is None else top_k,
        temperature if top_p is None else top_p,
        out,
        logits.stride(0),
        vocabulary=vocabulary,
        shift=shift,
        block=min(next_power_of_2(vocabulary), block),
        unit=float(1 << MASS_BITS),
        use_k=top_k is not None,
        use_p=top_p is not None,
        num_warps=16,
    )
    return out
