"""Stores new keys and values in the paged cache, and defines how a float8 cache is scaled.

A slot is the place of one token: `block_id * block_size + offset`, its row in a cache viewed as
`[num_blocks * block_size, ...]`.

A float8 cache (e4m3, largest number 448) holds `x / scale`. There is one scale for the keys and one for the values of
each KV head: kv_scales, float32[2, kv_heads], contiguous, keys first. A cache of integers holds its own scales
(`kernels.cache.kv_integers`). Any other cache holds x itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cache.kv_integers import LARGEST, dequantize_blocks, store_integers_reference
from kernels.cache.layer_kv import LayerKV

FP8_DTYPE = torch.float8_e4m3fn
FP8_MAX = 448.0


def store_kv_reference(k: Tensor, v: Tensor, kv: LayerKV, slot_mapping: Tensor) -> None:
    """Store row t of `k` and `v` in slot `slot_mapping[t]` of a cache, in place.

    k, v: [T, kv_heads, head_dim], last two dimensions contiguous; any dtype, cast to the cache's. Of a float8 cache,
    scaled values beyond ±448 are clamped.
    slot_mapping: int64[T], each slot at most once; -1 marks padding, which is not stored.
    It reads the slots on the host, so on a GPU it would synchronise. The kernel is `kernels.cache.rotary_store`.
    """
    if slot_mapping.numel() == 0:
        return
    if int(slot_mapping.min()) < 0:
        kept = (slot_mapping >= 0).nonzero().squeeze(1)
        k, v, slot_mapping = k[kept], v[kept], slot_mapping[kept]
    for i, (new, cache) in enumerate(((k, kv.keys), (v, kv.values))):
        rows = cache.view(-1, cache.shape[2], cache.shape[3])
        if cache.dtype in LARGEST:
            store_integers_reference(new, cache, slot_mapping)
        elif kv.scales is None:
            rows.index_copy_(0, slot_mapping, new.to(cache.dtype))
        else:  # as bytes: torch has no index_copy_ for float8 on the CPU
            rows.view(torch.uint8).index_copy_(0, slot_mapping, quantize(new, kv.scales[i]).view(torch.uint8))


def quantize(x: Tensor, scales: Tensor) -> Tensor:
    """`x / scales` in float8, clamped to ±448; x: [..., kv_heads, head_dim], scales: float32[kv_heads]."""
    return (x.float() / scales.unsqueeze(-1)).clamp_(-FP8_MAX, FP8_MAX).to(FP8_DTYPE)


def dequantize(x: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """`x * scales` in `dtype`: the inverse of `quantize`, except for rounding and clamping."""
    return (x.float() * scales.unsqueeze(-1)).to(dtype)


def read_blocks(blocks: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Blocks of a cache, [n, block_size, kv_heads, row width], as keys or values [n, block_size, kv_heads, head_dim].

    Parts of blocks may stand for blocks, but for integers. The same tensor if it holds keys or values of `dtype`.
    """
    if blocks.dtype in LARGEST:
        return dequantize_blocks(blocks, dtype)
    return blocks if scales is None else dequantize(blocks, scales, dtype)
