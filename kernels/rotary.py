"""Rotary position embedding in the half-split layout of GPT-NeoX, Llama and Qwen (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_reference(q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by the angles of their positions; returns new, contiguous (q, k).

    q: [T, heads, head_dim], k: [T, kv_heads, head_dim]. positions: int64[T], each below max_pos.
    cos_sin: float32[max_pos, head_dim], the cosines of head_dim / 2 angles and then their sines.
    Computed in float32, returned in the inputs' dtype. The kernel is `kernels.cache.rotary_store`.
    """
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).split(half, dim=-1)
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    wide = x.float()
    half = cos.shape[-1]
    first, second = wide[..., :half], wide[..., half:]
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin)
    return out.to(x.dtype)
