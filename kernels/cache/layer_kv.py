"""Keys and values of a layer as kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LayerKV(NamedTuple):
    """The KV cache of one layer.

    keys, values: [num_blocks, block_size, kv_heads, row width], contiguous; the row width is head_dim, but for integers
    (`kernels.cache.kv_integers`). scales: float32[2, kv_heads] of a float8 cache (`kernels.cache.kv_store`), else None.
    In a latent cache, values are the first elements of the keys (`kernels.attention.latent`).
    """

    keys: Tensor
    values: Tensor
    scales: Tensor | None = None

    @property
    def is_latent(self) -> bool:
        return self.values.shape[-1] != self.keys.shape[-1]

    def empty_output(self, q: Tensor) -> Tensor:
        """Uninitialised output of attention of q, [T, heads, head_dim]."""
        width = self.values.shape[-1] if self.is_latent else q.shape[-1]
        return torch.empty(*q.shape[:-1], width, dtype=q.dtype, device=q.device)
