"""PyTorch's attention, with sinks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    sinks: Tensor | None,
    is_causal: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` of q [..., n, d] over k and v [..., c, d]; all but the last two dimensions of k, v
    and mask [..., n, c] are repeated where they are 1.

    sinks: broadcast to [..., n]: see AttentionBackend. `is_causal` goes without sinks.
    """
    width = q.shape[-1]
    if sinks is not None:
        # The sink is the score of one more key, (0, ..., 0, 1), with queries (q, sink / scale) of one more element.
        last = (sinks / scale).to(q.dtype).unsqueeze(-1).expand(*q.shape[:-1], 1)
        q, k, v = torch.cat((q, last), -1), functional.pad(k, (0, 1, 0, 1)), functional.pad(v, (0, 1, 0, 1))
        k[..., -1, -1] = 1.0
        mask = mask if mask is None else functional.pad(mask, (0, 1), value=mask.dtype == torch.bool)
    k, v = (each.expand(*q.shape[:-2], *each.shape[-2:]) for each in (k, v))
    attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale)
    return attended[..., :width]
