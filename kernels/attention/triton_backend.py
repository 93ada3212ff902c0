"""The attention backend that launches the Triton kernels of this package: any block_size, any head_dim up to 256."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.decode import decode_attention
from kernels.attention.metadata import AttentionMetadata
from kernels.attention.prefill import prefill_attention
from kernels.cache.layer_kv import LayerKV


class TritonBackend:
    """Launches kernels without synchronising, so a step without prefill can be captured in a CUDA graph."""

    name = "triton"
    is_capturable = True
    window = 0

    def forward(
        self, q: Tensor, kv: LayerKV, metadata: AttentionMetadata, scale: float, out: Tensor | None = None
    ) -> Tensor:
        """See AttentionBackend.forward."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        first = metadata.num_prefill_tokens
        last = first + metadata.decode_context_lens.shape[0]
        if first:
            prefill_attention(
                q[:first],
                kv,
                metadata.cu_seqlens_q,
                metadata.prefill_context_lens,
                metadata.prefill_block_tables,
                scale,
                metadata.max_seqlen_q,
                metadata.max_prefill_context,
                out[:first],
            )
        if last > first:
            decode_attention(
                q[first:last],
                kv,
                metadata.decode_context_lens,
                metadata.decode_block_tables,
                scale,
                metadata.max_decode_context,
                out[first:last],
            )
        if last < q.shape[0]:
            out[last:].zero_()
        return out
