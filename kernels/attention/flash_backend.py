"""The attention backend that calls the flash-attn package (2.8): float16 or bfloat16, block_size a multiple of 256.

flash-attn itself demands these block sizes ("Paged KV cache block size must be divisible by 256",
csrc/flash_attn/flash_api.cpp).
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels.attention.metadata import AttentionMetadata
from kernels.cache.layer_kv import LayerKV
from kernels.runtime import ceil_div

PAGE_MULTIPLE = 256
MAX_HEAD_DIM = 256
_CALLED = {
    "flash_attn_varlen_func": (
        "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "softmax_scale", "causal", "block_table"
    ),
    "flash_attn_with_kvcache": ("cache_seqlens", "block_table", "softmax_scale", "causal"),
}  # fmt: skip


def flash_needs(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """What FlashAttention 2, of any package, needs and does not have here; None if nothing is missing."""
    if device.type != "cuda":
        return f"needs a CUDA device, not {device.type}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"needs float16 or bfloat16, not {dtype}"
    if head_dim > MAX_HEAD_DIM or head_dim % 8:
        return f"needs a head_dim that is a multiple of 8 up to {MAX_HEAD_DIM}, not {head_dim}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "needs compute capability 8.0 or later"
    return None


def flash_unavailable(device: torch.device, dtype: torch.dtype, head_dim: int, block_size: int) -> str | None:
    """Why flash-attn cannot run, or None if it can. Imports flash-attn only if nothing else rules it out."""
    if device.type == "cuda" and block_size % PAGE_MULTIPLE:
        return f"needs a block_size that is a multiple of {PAGE_MULTIPLE}, not {block_size}"
    if (reason := flash_needs(device, dtype, head_dim)) is not None:
        return reason
    try:
        library = importlib.import_module("flash_attn")
    except ImportError as error:
        return f"flash-attn cannot be imported ({error})"
    return _other_signature(library)


def _other_signature(library: Any) -> str | None:
    """What flash-attn lacks of what `FlashBackend` calls, if anything."""
    for name, parameters in _CALLED.items():
        function = getattr(library, name, None)
        known = inspect.signature(function).parameters if function is not None else {}
        if missing := [parameter for parameter in parameters if parameter not in known]:
            version = getattr(library, "__version__", "of an unknown version")
            return f"flash-attn {version} has no {name} with {', '.join(missing)}"
    return None


class FlashBackend:
    """Calls flash_attn_varlen_func for prefill chunks and flash_attn_with_kvcache for decodes, with block tables."""

    name = "flash"
    is_capturable = True

    def __init__(self) -> None:
        self._library: Any = importlib.import_module("flash_attn")
        self._step: AttentionMetadata | None = None
        self._cu_seqlens_k: Tensor | None = None

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
        assert kv.scales is None, "flash-attn 2 reads no float8 cache"
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        first = metadata.num_prefill_tokens
        last = first + metadata.decode_context_lens.shape[0]
        if first:
            out[:first] = self._library.flash_attn_varlen_func(
                q[:first],
                kv.keys,
                kv.values,
                cu_seqlens_q=metadata.cu_seqlens_q,
                cu_seqlens_k=self._context_bounds(metadata),
                max_seqlen_q=metadata.max_seqlen_q,
                max_seqlen_k=metadata.max_prefill_context,
                softmax_scale=scale,
                causal=True,
                block_table=metadata.prefill_block_tables,
            )
        if last > first:
            # flash-attn chooses its splits by the width of the table, so the table gets no more columns than needed.
            width = ceil_div(max(metadata.max_decode_context, 1), kv.keys.shape[1])
            attended = self._library.flash_attn_with_kvcache(
                q[first:last].unsqueeze(1),
                kv.keys,
                kv.values,
                cache_seqlens=metadata.decode_context_lens,
                block_table=metadata.decode_block_tables[:, :width],
                softmax_scale=scale,
                causal=True,
            )
            out[first:last] = attended.squeeze(1)
        if last < q.shape[0]:
            out[last:].zero_()
        return out

    def _context_bounds(self, metadata: AttentionMetadata) -> Tensor:
        """int32[num_prefills + 1]: cumulative context lengths; computed in a step's first layer, reused in the rest."""
        if self._cu_seqlens_k is None or self._step is not metadata:
            lengths = metadata.prefill_context_lens.cumsum(0, dtype=torch.int32)
            self._step, self._cu_seqlens_k = metadata, functional.pad(lengths, (1, 0))
        return self._cu_seqlens_k
