"""The attention backend that launches the Triton kernels of this package: any block_size, any head_dim up to 256."""

from __future__ import annotations

from torch import Tensor

from kernels.attention.decode import decode_attention
from kernels.attention.latent import latent_attention, one_token_each
from kernels.attention.metadata import AttentionMetadata
from kernels.attention.prefill import prefill_attention
from kernels.cache.layer_kv import LayerKV


class TritonBackend:
    """Launches kernels without synchronising, so a step without prefill can be captured in a CUDA graph."""

    name = "triton"
    is_capturable = True

    def forward(
        self,
        q: Tensor,
        kv: LayerKV,
        metadata: AttentionMetadata,
        scale: float,
        out: Tensor | None = None,
        window: int = 0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See AttentionBackend.forward."""
        out = kv.empty_output(q) if out is None else out
        first = metadata.num_prefill_tokens
        last = first + metadata.decode_context_lens.shape[0]
        if kv.is_latent:
            self._attend_latents(q[:last], kv, metadata, scale, out[:last])
        elif first:
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
                window=window,
                sinks=sinks,
            )
        if last > first and not kv.is_latent:
            decode_attention(
                q[first:last],
                kv,
                metadata.decode_context_lens,
                metadata.decode_block_tables,
                scale,
                metadata.max_decode_context,
                out[first:last],
                window=window,
                sinks=sinks,
            )
        if last < q.shape[0]:
            out[last:].zero_()
        return out

    def _attend_latents(self, q: Tensor, kv: LayerKV, metadata: AttentionMetadata, scale: float, out: Tensor) -> None:
        first = metadata.num_prefill_tokens
        if first:
            latent_attention(
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
        if first < q.shape[0]:
            contexts = metadata.decode_context_lens
            latent_attention(
                q[first:],
                kv,
                one_token_each(contexts),
                contexts,
                metadata.decode_block_tables,
                scale,
                1,
                metadata.max_decode_context,
                out[first:],
            )
