"""The attention backends that call FlashAttention 2, in float16 or bfloat16: the flash-attn package's, and torch's own.

The flash-attn package (2.8) takes a block_size that is a multiple of 256 ("Paged KV cache block size must be divisible
by 256", csrc/flash_attn/flash_api.cpp).
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels.attention.metadata import AttentionMetadata
from kernels.attention.triton_backend import TritonBackend
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
_flash_attention = torch.ops.aten._flash_attention_forward
_TORCH_ARGUMENTS = (
    "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask"
)  # fmt: skip


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


def other_signature(schema: torch._C.FunctionSchema) -> str | None:
    """How the signature of torch's kernel differs from the one that is called here; None if it does not."""
    arguments = {argument.name: argument.kwarg_only for argument in schema.arguments}
    positional = tuple(name for name, kwarg_only in arguments.items() if not kwarg_only)
    if positional == _TORCH_ARGUMENTS and arguments.get("scale") and len(schema.returns) > 1:
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
    """Calls torch's FlashAttention for chunks that all begin their prompts, and our Triton kernels for the rest.

    torch's kernel reads keys and values that lie one after the other, so those of the chunks are copied out of the
    cache first. That is little work beside attention, but only where no chunk has a context before it.
    """

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
