"""The attention backend in PyTorch: it runs on the CPU, and is the reference of the other backends."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.metadata import AttentionMetadata
from kernels.attention.prefill import prefill_attention_reference
from kernels.attention.torch_decode import DecodePlan, Scratch, plan_decode, torch_decode_attention
from kernels.cache.layer_kv import LayerKV


class TorchBackend:
    """Gathers keys and values from the cache into reused buffers, and calls torch's attention on the buffers.

    Args:
        window: see AttentionBackend.
    """

    name = "torch"
    is_capturable = False

    def __init__(self, window: int = 0) -> None:
        self.window = window
        self._scratch = Scratch()
        self._step: AttentionMetadata | None = None
        self._plan: DecodePlan | None = None

    def forward(
        self, q: Tensor, kv: LayerKV, metadata: AttentionMetadata, scale: float, out: Tensor | None = None
    ) -> Tensor:
        """See AttentionBackend.forward."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
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
                self.window,
            )
        last = first + metadata.decode_context_lens.shape[0]
        if last > first:
            plan = self._decode_plan(metadata, kv.keys, q.dtype)
            torch_decode_attention(q[first:last], kv, plan, scale, out[first:last], self._scratch)
        if last < q.shape[0]:
            out[last:].zero_()
        return out

    def _decode_plan(self, metadata: AttentionMetadata, k_cache: Tensor, dtype: torch.dtype) -> DecodePlan:
        """The plan of this step; computed in the step's first layer, reused in the others."""
        if self._plan is None or self._step is not metadata:
            contexts = metadata.decode_context_lens, metadata.decode_block_tables
            self._plan = plan_decode(*contexts, k_cache, dtype, self.window)
            self._step = metadata
        return self._plan
