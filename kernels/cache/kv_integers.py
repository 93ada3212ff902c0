"""Keys and values in 8 or 4 bits: integers, and one float16 scale for each token and KV head.

The dtype of a cache says its format. A row is the key (or value) of one token in one KV head, and takes

    int8    head_dim integers from -127 to 127
    uint8   head_dim / 2 bytes: byte i has element i in its low four bits and element i + head_dim / 2 in its high ones,
            as integers + 8

and two bytes for its scale. Integers are from -7 to 7 in 4 bits. The scale maps the largest absolute element of the row
to the largest integer. Elements beyond the largest scale times the largest integer (65504 * 7 in 4 bits) are clamped to
that. A block has all its integers first, so that kernels can load 16 bytes of a row at once:

    | integers [block_size, kv_heads, head_dim or head_dim / 2] | scales [kv_heads, block_size] |

So every copy of a block carries its scales along, and a row depends on no other token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.runtime import Value, constexpr, tl, triton

INT8_DTYPE = torch.int8
INT4_DTYPE = torch.uint8
BITS = {INT8_DTYPE: 8, INT4_DTYPE: 4}
LARGEST = {INT8_DTYPE: 127, INT4_DTYPE: 7}
SCALE_BYTES = 2
SMALLEST_SCALE = 2.0**-14  # the smallest normal float16
LARGEST_SCALE = 65504.0
OFFSET = 8  # of integers of 4 bits


def row_width(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of `dtype` that a row takes in a cache of this dtype."""
    if dtype not in LARGEST:
        return head_dim
    return head_dim // (2 if dtype == INT4_DTYPE else 1) + SCALE_BYTES


def head_dim_of(cache: Tensor) -> int:
    """Elements of a key in a cache [..., row width]: the inverse of `row_width`."""
    width = cache.shape[-1]
    if cache.dtype not in LARGEST:
        return width
    return (width - SCALE_BYTES) * (2 if cache.dtype == INT4_DTYPE else 1)


def block_parts(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Views of blocks [n, block_size, kv_heads, row width] of a cache.

    Integers [n, block_size, kv_heads, row width - 2] and the bytes of the scales [n, block_size, kv_heads, 2].
    """
    num_blocks, block_size, kv_heads, width = blocks.shape
    num_bytes, rows = width - SCALE_BYTES, block_size * kv_heads
    codes, scales = blocks.view(num_blocks, rows * width).split((rows * num_bytes, rows * SCALE_BYTES), dim=1)
    codes = codes.view(num_blocks, block_size, kv_heads, num_bytes)
    return codes, scales.view(num_blocks, kv_heads, block_size, SCALE_BYTES).transpose(1, 2)


def quantize_integers(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(integers, bytes of the scales) of rows `x [..., head_dim]`, of the cache's `dtype`."""
    x, largest = x.float(), LARGEST[dtype]
    scales = (x.abs().amax(-1, keepdim=True) / largest).clamp_(SMALLEST_SCALE, LARGEST_SCALE)
    scales = scales.to(torch.float16, memory_format=torch.contiguous_format)  # `view` asks for a last stride of 1
    codes = (x / scales.float()).round_().clamp_(-largest, largest).to(torch.int8)
    if dtype == INT4_DTYPE:
        low, high = (codes + OFFSET).view(torch.uint8).chunk(2, -1)
        codes = low | (high << 4)
    return codes, scales.view(dtype)


def dequantize_integers(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows in `dtype`: the inverse of `quantize_integers`, except for rounding."""
    if codes.dtype == INT4_DTYPE:
        codes = torch.cat((codes & 15, codes >> 4), -1).view(torch.int8) - OFFSET
    scales = scales.clone(memory_format=torch.contiguous_format).view(torch.float16)
    return (codes.float() * scales.float()).to(dtype)


def quantize_blocks(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x [n, block_size, kv_heads, head_dim]` as blocks of a cache of `dtype`."""
    blocks = torch.empty(*x.shape[:-1], row_width(x.shape[-1], dtype), dtype=dtype, device=x.device)
    for part, new in zip(block_parts(blocks), quantize_integers(x, dtype), strict=True):
        part.copy_(new)
    return blocks


def dequantize_blocks(blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Blocks of a cache in `dtype`, [n, block_size, kv_heads, head_dim]: the inverse of `quantize_blocks`."""
    return dequantize_integers(*block_parts(blocks), dtype)


def store_integers_reference(x: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Store `x [T, kv_heads, head_dim]` in the slots int64[T] of a cache of integers."""
    blocks, places = slots // cache.shape[1], slots % cache.shape[1]
    for part, new in zip(block_parts(cache), quantize_integers(x, cache.dtype), strict=True):
        part[blocks, places] = new


@triton.jit
def load_codes(
    cache_ptr: Value,
    blocks: Value,
    rows: Value,
    inside: Value,
    dim: Value,
    kv_heads: constexpr,
    head_dim: constexpr,
    block_size: constexpr,
    block_d: constexpr,
    whole: constexpr,
    bits: constexpr,
) -> Value:
    """Integers [n, block_d] of the rows `rows` of `blocks` where `inside`, or of all rows if `whole`.

    `dim` from head_dim on is padding.
    """
    num_bytes: constexpr = head_dim * bits // 8
    starts = cache_ptr + blocks.to(tl.int64) * (block_size * kv_heads * (num_bytes + 2)) + rows * num_bytes
    places = starts[:, None] + (dim % num_bytes)[None, :]
    if whole and head_dim == block_d:
        codes = tl.load(places)
    elif head_dim == block_d:
        codes = tl.load(places, mask=inside[:, None], other=0)
    else:
        codes = tl.load(places, mask=inside[:, None] & (dim < head_dim)[None, :], other=0)
    if bits == 4:
        codes = ((codes >> (dim // num_bytes % 2 * 4).to(tl.uint8)[None, :]) & 15).to(tl.int8) - 8
    return codes


@triton.jit
def load_scales(
    cache_ptr: Value,
    blocks: Value,
    places: Value,
    inside: Value,
    kv_heads: constexpr,
    head_dim: constexpr,
    block_size: constexpr,
    bits: constexpr,
) -> Value:
    """float32[n]: the scales at `places` of `blocks` where `inside`, else 0."""
    num_bytes: constexpr = head_dim * bits // 8
    rows: constexpr = block_size * kv_heads
    starts = cache_ptr + blocks.to(tl.int64) * (rows * (num_bytes + 2)) + rows * num_bytes
    scale_ptrs = starts.to(tl.pointer_type(tl.float16)) + places
    return tl.load(scale_ptrs, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def round_to_integers(x: Value, scale: Value, largest: constexpr) -> Value:
    """x / scale as int32, halves to even, clamped to `largest`."""
    x = tl.minimum(tl.maximum(x / scale, -largest), largest)
    return ((x + 12582912.0) - 12582912.0).to(tl.int32)  # from 1.5 * 2^23 on, float32 has integers only


@triton.jit
def find_row(
    cache_ptr: Value, slot: Value, kv_head: Value, kv_heads: Value, num_bytes: constexpr, block_size: constexpr
) -> Value:
    """(pointer to the integers, float16 pointer to the scale) of a row of the cache."""
    place, rows = slot % block_size, block_size * kv_heads
    block_ptr = cache_ptr + slot // block_size * (rows * (num_bytes + 2))
    scale_ptr = (block_ptr + rows * num_bytes).to(tl.pointer_type(tl.float16)) + kv_head * block_size + place
    return block_ptr + (place * kv_heads + kv_head) * num_bytes, scale_ptr
