"""Keys and values as kernels take them: those of a layer's cache, and those of a step that are to be stored."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

NewKV = tuple[Tensor, Tensor] | None
"""Keys and values of a step's tokens, [T, kv_heads, head_dim] each, last two dimensions contiguous; None for keys and
values that `kernels.cache.rotary_store` has stored already."""


class LayerKV(NamedTuple):
    """The KV cache of one layer.

    keys, values: [num_blocks, block_size, kv_heads, row width], contiguous; the row width is head_dim, but for integers
    (`kernels.cache.kv_integers`). scales: float32[2, kv_heads] of a float8 cache (`kernels.cache.kv_store`), else None.
    """

    keys: Tensor
    values: Tensor
    scales: Tensor | None = None
