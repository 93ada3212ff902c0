"""The attention backend in PyTorch: it runs on the CPU, and is the reference of the other backends."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.metadata import AttentionMetadata
from kernels.attention.prefill import prefill_attention_reference
from kernels.attention.torch_decode import DecodePlan, Scratch, plan_decode, torch_decode_attention
from kernels.cache.layer_kv import LayerKV


class TorchBackend:
    """Gathers keys and values from the cache into reused buffers, and calls torch's attention on the buffers."""

    name = "torch"
    is_capturable = False

    def __init__(self) -> None:
        self._scratch = Scratch()
        self._step: AttentionMetadata | None = None
        self._plans: dict[int, DecodePlan] = {}  # by window

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
        if first:
            prefill_attention_reference(
                q[:first],
                kv,
                metadata.cu_seqlens_q,
                metadata.prefill_context_lens,
                metadata.prefill_block_tables,
                scale,
                out[:first],
                window,
                sinks,
            )
        last = first + metadata.decode_context_lens.shape[0]
        if last > first:
            plan = self._decode_plan(metadata, kv.keys, q.dtype, window)
            torch_decode_attention(q[first:last], kv, plan, scale, out[first:last], self._scratch, sinks)
        if last < q.shape[0]:
            out[last:].zero_()
        return out

    def _decode_plan(self, metadata: AttentionMetadata, k_cache: Tensor, dtype: torch.dtype, window: int) -> DecodePlan:
        """The plan of this step; computed in the step's first layer with this window, reused in the others."""
        if self._step is not metadata:
            self._step, self._plans = metadata, {}
        if window not in self._plans:
            contexts = metadata.decode_context_lens, metadata.decode_block_tables
            self._plans[window] = plan_decode(*contexts, k_cache, dtype, window)
        return self._plans[window]
