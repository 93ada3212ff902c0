"""The attention backend that launches the Triton kernels of this package: any block_size, any head_dim up to 256."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from kernels.attention.decode import decode_attention
from kernels.attention.latent import latent_attention, one_token_each
from kernels.attention.metadata import AttentionMetadata
from kernels.attention.prefill import prefill_attention
from kernels.cache.layer_kv import LayerKV
from kernels.launch import Series, noting_launches


class TritonBackend:
    """Launches kernels without synchronising, so a step without prefill can be captured in a CUDA graph."""

    name = "triton"
    is_capturable = True

    def __init__(self) -> None:
        self._step: AttentionMetadata | None = None
        self._series: dict[Hashable, Series] = {}  # of the step, by what the kernels of a layer are compiled for

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
        elif last:
            self._attend_again(q, kv, metadata, scale, out, window, sinks)
        if last < q.shape[0]:
            out[last:].zero_()
        return out

    def _attend_again(
        self,
        q: Tensor,
        kv: LayerKV,
        metadata: AttentionMetadata,
        scale: float,
        out: Tensor,
        window: int,
        sinks: Tensor | None,
    ) -> None:
        """Launch what the first layer of this kind has launched in this step, or be the first."""
        if self._step is not metadata:
            self._step, self._series = metadata, {}
        tensors = [q, kv.keys, kv.values, out, *(each for each in (kv.scales, sinks) if each is not None)]
        addresses = [each.data_ptr() for each in tensors]
        is_aligned = not any(address & 15 for address in addresses)
        kind = window, scale, kv.scales is None, sinks is None, q.shape, q.stride(0), out.stride(0)
        if is_aligned and (series := self._series.get(kind)) is not None:
            series(addresses)
            return
        with noting_launches() as noted:
            self._attend(q, kv, metadata, scale, out, window, sinks)
        made = [each for each in noted if each is not None]
        if made and len(made) == len(noted):
            self._series[kind] = Series(made, tensors)

    def _attend(
        self,
        q: Tensor,
        kv: LayerKV,
        metadata: AttentionMetadata,
        scale: float,
        out: Tensor,
        window: int,
        sinks: Tensor | None,
    ) -> None:
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
                window=window,
                sinks=sinks,
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
                window=window,
                sinks=sinks,
            )

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
