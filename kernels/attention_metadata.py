"""What a step of attention is, and the interface that backends have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class AttentionMetadata:
    """One step of attention. Make a new one per step: backends may keep what they derive from it while it is current.

    Tokens are laid out so: all prefill chunks one after the other, then one token per decode.

        | chunk of prefill 0 | chunk of prefill 1 | ... | decode 0 | decode 1 | ... | padding |

    All tensors lie on the device of the cache; block tables may have any row stride. Entries of a block table past a
    row's context are never read.
    """

    slot_mapping: Tensor
    """int64[num_tokens]: where each token's key and value go; -1 stores nothing."""
    num_prefill_tokens: int
    cu_seqlens_q: Tensor
    """int32[num_prefills + 1]: where each chunk begins among the tokens, then num_prefill_tokens."""
    prefill_context_lens: Tensor
    """int32[num_prefills]: KV length after this chunk: cached tokens and the chunk."""
    prefill_block_tables: Tensor
    """int32[num_prefills, max_blocks]"""
    max_seqlen_q: int
    max_prefill_context: int
    decode_context_lens: Tensor
    """int32[num_decodes]: KV length including this token; 0 marks a padded row, whose output is zeros."""
    decode_block_tables: Tensor
    """int32[num_decodes, max_blocks]"""
    max_decode_context: int
    """Bound on decode_context_lens, used to choose the splits; under CUDA graphs the longest context ever replayed."""


class AttentionBackend(Protocol):
    """Stores a step's keys and values in the paged cache, then attends causally over it."""

    name: str
    is_capturable: bool
    """Whether a step without prefill can be captured in a CUDA graph."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        out: Tensor | None = None,
        kv_scales: Tensor | None = None,
    ) -> Tensor:
        """Attention of one layer over one step.

        q: [T, heads, head_dim]; k, v: [T, kv_heads, head_dim]; last two dimensions contiguous.
        k_cache, v_cache: [num_blocks, block_size, kv_heads, head_dim], contiguous.
        out: [T, heads, head_dim] to write to, else a new tensor -> [T, heads, head_dim].
        kv_scales: float32[2, kv_heads] of a float8 cache (`kernels.kv_store`), None for a cache of q's dtype.
        """
        ...
