"""The description of one step of attention, and the interface of the attention backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.cache.layer_kv import LayerKV


@dataclass(frozen=True)
class AttentionMetadata:
    """Which tokens one step computes, and where their contexts lie in the KV cache.

    Make a new object for every step: a backend caches what it derives from the object and reuses it in all layers.

    The tokens of a step are the prefill chunks, one after the other, then one token per decode:

        | chunk of prefill 0 | chunk of prefill 1 | ... | decode 0 | decode 1 | ... | padding |

    All tensors lie on the device of the cache; block tables may have any row stride. Entries of a block table beyond
    its row's context are never read.
    """

    slot_mapping: Tensor
    """int64[num_tokens]: the slot of each token's key and value (`kernels.cache.kv_store`); -1 stores nothing."""
    num_prefill_tokens: int
    cu_seqlens_q: Tensor
    """int32[num_prefills + 1]: the index of each chunk's first token, then num_prefill_tokens."""
    prefill_context_lens: Tensor
    """int32[num_prefills]: tokens of the sequence up to and including this chunk."""
    prefill_block_tables: Tensor
    """int32[num_prefills, max_blocks]"""
    max_seqlen_q: int
    """Tokens of the longest chunk."""
    max_prefill_context: int
    """The largest of prefill_context_lens."""
    decode_context_lens: Tensor
    """int32[num_decodes]: tokens of the sequence including this one; 0 marks a padded row, whose output is zeros."""
    decode_block_tables: Tensor
    """int32[num_decodes, max_blocks]"""
    max_decode_context: int
    """Upper bound of decode_context_lens, valid for all replays of a CUDA graph; backends choose their splits by it."""
    begins_prompts: bool = False
    """Whether every prefill chunk is known to begin its sequence, so that its context is the chunk itself."""


def empty_prefill(device: torch.device) -> dict[str, object]:
    """The prefill fields of the attention metadata of a step without prompt chunks."""
    empty = torch.zeros(0, dtype=torch.int32, device=device)
    return {
        "num_prefill_tokens": 0,
        "cu_seqlens_q": torch.zeros(1, dtype=torch.int32, device=device),
        "prefill_context_lens": empty,
        "prefill_block_tables": empty.reshape(0, 0),
        "max_seqlen_q": 0,
        "max_prefill_context": 0,
    }


class AttentionBackend(Protocol):
    """Attends causally over the paged cache, which has the keys and values of the step's tokens already."""

    name: str
    is_capturable: bool
    """Whether a step without prefill can be captured in a CUDA graph; then kernels of Triton store keys and values."""

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
        """Attention of one layer in one step -> [T, heads, width of a value], which is `out` if given, else new.

        q: [T, heads, head_dim], last two dimensions contiguous.
        scale: factor of the scores before the softmax.
        window: how many of the last tokens of its context a token sees, itself included; 0 for all.
        sinks: [heads], the score in each head of one more key, whose value is zeros; it is not scaled.
        """
        ...
