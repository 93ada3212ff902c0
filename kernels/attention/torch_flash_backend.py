"""The attention backend of this package's Triton kernels, with the FlashAttention that torch contains for new prompts.

torch's kernel reads keys and values that lie one after the other, so those of the chunks are copied out of the cache
first. That is little work beside attention, but only where no chunk has a context before it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.attention.flash_backend import flash_needs
from kernels.attention.metadata import AttentionMetadata
from kernels.attention.triton_backend import TritonBackend
from kernels.cache.layer_kv import LayerKV

_flash_attention = torch.ops.aten._flash_attention_forward
_ARGUMENTS = (
    "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask"
)  # fmt: skip


def other_signature(schema: torch._C.FunctionSchema) -> str | None:
    """How the signature of torch's kernel differs from the one that is called here; None if it does not."""
    arguments = {argument.name: argument.kwarg_only for argument in schema.arguments}
    positional = tuple(name for name, kwarg_only in arguments.items() if not kwarg_only)
    if positional == _ARGUMENTS and arguments.get("scale") and len(schema.returns) > 1:
        return None
    return f"torch {torch.__version__} has another {schema.name}({', '.join(arguments)})"


_OTHER_SIGNATURE = other_signature(_flash_attention.default._schema)


def torch_flash_unavailable(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why torch's FlashAttention cannot run, or None if it can."""
    if (reason := flash_needs(device, dtype, head_dim)) is not None:
        return reason
    if not torch.backends.cuda.is_flash_attention_available():
        return "torch is built without FlashAttention"
    return _OTHER_SIGNATURE


class TorchFlashBackend:
    """Calls torch's FlashAttention for chunks that all begin their prompts, and Triton's kernels for the rest."""

    name = "torch_flash"
    is_capturable = True

    def __init__(self) -> None:
        self._triton = TritonBackend()
        self._step: AttentionMetadata | None = None
        self._decodes: AttentionMetadata | None = None

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
        """See AttentionBackend.forward; `kv` has no scales and is not latent, and there are no window and no sinks."""
        assert not window and sinks is None and not kv.is_latent, "another backend is chosen for these"
        assert kv.scales is None, "torch's FlashAttention reads no float8 cache"
        first = metadata.num_prefill_tokens
        if not first or not metadata.begins_prompts:
            return self._triton.forward(q, kv, metadata, scale, out)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        slots, bounds, longest = metadata.slot_mapping[:first], metadata.cu_seqlens_q, metadata.max_seqlen_q
        keys, values = (cache.flatten(0, 1).index_select(0, slots) for cache in (kv.keys, kv.values))
        out[:first] = _flash_attention(
            q[:first], keys, values, bounds, bounds, longest, longest, 0.0, True, False, scale=scale
        )[0]
        if first < q.shape[0]:
            self._triton.forward(q[first:], kv, self._after(metadata), scale, out[first:])
        return out

    def _after(self, metadata: AttentionMetadata) -> AttentionMetadata:
        """The step without its chunks; made in a step's first layer, reused in the others."""
        if self._decodes is None or self._step is not metadata:
            self._step = metadata
            self._decodes = replace(
                metadata, num_prefill_tokens=0, slot_mapping=metadata.slot_mapping[metadata.num_prefill_tokens :]
            )
        return self._decodes
