"""Keys and values in 8 or 4 bits: integers, and one float16 scale for each token and KV head.

The dtype of a cache says its format, and a row is the key (or value) of one token in one KV head:

    int8    head_dim integers from -127 to 127                                  | scale      head_dim + 2 bytes
    uint8   head_dim / 2 bytes: byte i has element i in its low four bits and   | scale      head_dim / 2 + 2 bytes
            element i + head_dim / 2 in its high ones, as integers + 8

Integers are from -7 to 7 in 4 bits. The scale maps the largest absolute element of the row to the largest integer. As
it lies in the row, every copy of a block carries it along, and the row depends on no other token. Elements beyond the
largest scale times the largest integer (65504 * 7 in 4 bits) are clamped to that.
"""

from __future__ import annotations

import torch
from torch import Tensor

INT8_DTYPE = torch.int8
INT4_DTYPE = torch.uint8
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


def quantize_integers(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x [..., head_dim]` as rows of a cache of `dtype`, [..., row width]."""
    x, largest = x.float(), LARGEST[dtype]
    scales = (x.abs().amax(-1, keepdim=True) / largest).clamp_(SMALLEST_SCALE, LARGEST_SCALE).to(torch.float16)
    codes = (x / scales.float()).round_().clamp_(-largest, largest).to(torch.int8)
    if dtype == INT4_DTYPE:
        low, high = (codes + OFFSET).view(torch.uint8).chunk(2, -1)
        codes = low | (high << 4)
    return torch.cat((codes, scales.view(dtype)), -1)


def dequantize_integers(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of a cache in `dtype`: the inverse of `quantize_integers`, except for rounding."""
    codes, scales = rows[..., :-SCALE_BYTES], rows[..., -SCALE_BYTES:]
    if rows.dtype == INT4_DTYPE:
        codes = torch.cat((codes & 15, codes >> 4), -1).view(torch.int8) - OFFSET
    scales = scales.clone(memory_format=torch.contiguous_format).view(torch.float16)
    return (codes.float() * scales.float()).to(dtype)
