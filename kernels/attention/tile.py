"""What the attention kernels share: reading a tile of keys and values from the paged cache, and the online softmax.

The block table is read one tile ahead of the keys and values. They are then the only loads that a tile waits for, and
Triton's software pipeline keeps `num_stages` - 1 tiles of them in flight while it multiplies.
"""

from __future__ import annotations

from typing import Any

from kernels.attention.configs import DecodeConfig, PrefillConfig
from kernels.attention.splits import MIN_SPLIT_TOKENS
from kernels.cache.kv_integers import BITS, load_codes, load_scales
from kernels.cache.layer_kv import LayerKV
from kernels.runtime import INTERPRETED, Value, constexpr, next_power_of_2, tl, triton


def launch_constants(
    heads: int,
    head_dim: int,
    kv: LayerKV,
    config: DecodeConfig | PrefillConfig,
    splits: int,
    window: int,
    has_sinks: bool,
) -> dict[str, Any]:
    """The constants that both kernels are compiled by, and Triton's options."""
    kv_heads = kv.keys.shape[2]
    return {
        "kv_heads": kv_heads,
        "group_size": heads // kv_heads,
        "head_dim": head_dim,
        "block_size": kv.keys.shape[1],
        "block_n": config.block_n,
        "block_d": max(16, next_power_of_2(head_dim)),
        "min_split": MIN_SPLIT_TOKENS,
        "one_split": splits == 1,
        "quantized": kv.scales is not None,
        "bits": BITS.get(kv.keys.dtype, 0),
        "window": window,
        "has_sinks": has_sinks,
        "interpreted": INTERPRETED,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
    }


@triton.jit
def find_blocks(table_ptr: Value, positions: Value, end: Value, block_size: constexpr) -> Value:
    """The blocks of the tokens at `positions`; 0 from position `end` on."""
    return tl.load(table_ptr + positions // block_size, mask=positions < end, other=0)


@triton.jit
def beside_float8(q: Value) -> Value:
    """Queries as they are multiplied with keys in float8: bfloat16 becomes float16, which holds every float8 number.

    Hopper turns two float8 numbers into float16 in one instruction, into bfloat16 in several. Queries up to 65,504 fit.
    """
    if q.dtype == tl.bfloat16:
        q = q.to(tl.float16)
    return q


@triton.jit
def start_softmax(sinks_ptr: Value, mask: Value, split: Value, rows: constexpr, has_sinks: constexpr) -> Value:
    """(total, maximum) of the online softmax before the first key; the first split has seen the sinks of its rows."""
    total = tl.zeros([rows], tl.float32)
    maximum = tl.full([rows], float("-inf"), tl.float32)
    if has_sinks:
        sinks = tl.load(sinks_ptr, mask=mask, other=0.0).to(tl.float32) * 1.4426950408889634  # log2(e)
        maximum = tl.where(split == 0, sinks, maximum)
        total = tl.where(split == 0, 1.0, total)
    return total, maximum


@triton.jit
def load_tile(
    cache_ptr: Value,
    slots: Value,
    inside: Value,
    kv_head: Value,
    dim: Value,
    kv_heads: constexpr,
    head_dim: constexpr,
    block_d: constexpr,
    whole: constexpr,
) -> Value:
    """[n, block_d]: keys, or values, in `slots` where `inside`, or in all slots if `whole`; else 0."""
    rows = cache_ptr + (slots * kv_heads + kv_head) * head_dim
    places = rows[:, None] + dim[None, :]
    if whole and head_dim == block_d:
        return tl.load(places)
    if head_dim == block_d:
        return tl.load(places, mask=inside[:, None], other=0.0)
    return tl.load(places, mask=inside[:, None] & (dim < head_dim)[None, :], other=0.0)


@triton.jit
def attend_tile(
    q: Value,
    acc: Value,
    total: Value,
    maximum: Value,
    k_cache_ptr: Value,
    v_cache_ptr: Value,
    blocks: Value,
    positions: Value,
    end: Value,
    visible: Value,
    kv_head: Value,
    dim: Value,
    qk_scale: Value,
    kv_heads: constexpr,
    head_dim: constexpr,
    block_size: constexpr,
    block_d: constexpr,
    causal: constexpr,
    whole: constexpr,
    converted: constexpr,
    bits: constexpr,
    window: constexpr,
) -> Value:
    """Add the keys at `positions`, which lie in `blocks`, to the online softmax: its new (acc, total, maximum).

    Keys from position `end` on do not count; `whole` says that there are none. If `causal`, row i of q sees the first
    `visible[i]` keys only, and of these the last `window` if that is not 0. converted: the cache has floats of another
    dtype than q's.
    """
    inside = positions < end
    places = positions % block_size
    if bits > 0:
        codes_at, scales_at = places * kv_heads + kv_head, kv_head * block_size + places
        k = load_codes(k_cache_ptr, blocks, codes_at, inside, dim, kv_heads, head_dim, block_size, block_d, whole, bits)
        k_scales = load_scales(k_cache_ptr, blocks, scales_at, inside, kv_heads, head_dim, block_size, bits)
        v_scales = load_scales(v_cache_ptr, blocks, scales_at, inside, kv_heads, head_dim, block_size, bits)
        v = load_codes(v_cache_ptr, blocks, codes_at, inside, dim, kv_heads, head_dim, block_size, block_d, whole, bits)
        k, v = k.to(q.dtype), v.to(q.dtype)
    else:
        slots = blocks.to(tl.int64) * block_size + places
        k = load_tile(k_cache_ptr, slots, inside, kv_head, dim, kv_heads, head_dim, block_d, whole)
        v = load_tile(v_cache_ptr, slots, inside, kv_head, dim, kv_heads, head_dim, block_d, whole)
        if converted:
            k, v = k.to(q.dtype), v.to(q.dtype)
    scores = tl.dot(q, tl.trans(k), input_precision="tf32x3")
    if bits > 0:
        scores *= k_scales[None, :]
    if causal:
        seen = positions[None, :] < visible[:, None]
        if window > 0:
            seen = seen & (positions[None, :] >= visible[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
    elif not whole:
        scores = tl.where(inside[None, :], scores, float("-inf"))
    # The scale is positive: it is applied to the maximum, and to the scores in the instruction that subtracts it.
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1) * qk_scale)
    reference = new_maximum
    if causal:  # a row may have seen no key so far: its weights are 0, not NaN
        reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp2(scores * qk_scale - reference[:, None])
    shrink = tl.exp2(maximum - reference)
    total = total * shrink + tl.sum(weights, axis=1)
    if bits > 0:
        weights *= v_scales[None, :]
    acc = tl.dot(weights.to(v.dtype), v, acc=acc * shrink[:, None], input_precision="tf32x3")
    return acc, total, new_maximum
