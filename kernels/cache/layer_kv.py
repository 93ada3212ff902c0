"""Keys and values of a layer as kernels take them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class LayerKV(NamedTuple):
    """The KV cache of one layer.

    keys, values: [num_blocks, block_size, kv_heads, row width], contiguous; the row width is head_dim, but for integers
    (`kernels.cache.kv_integers`). scales: float32[2, kv_heads] of a float8 cache (`kernels.cache.kv_store`), else None.
    """

    keys: Tensor
    values: Tensor
    scales: Tensor | None = None
