"""Runs attention beside the CUDA graphs before the first request does.

Attention of prompts is no part of a graph. Its kernels are compiled for tiles of 16 to 128 rows, and for contexts in
one split or several. Compiling one takes seconds, and loading one that was compiled before some milliseconds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.blocks import CausalLM, layer_caches
from kernels.attention.backends import AttentionMetadata

_LONG_CONTEXT = 4096
_SHORT_CONTEXT = 100


def warm_attention(model: CausalLM, kv_cache: Tensor, max_tokens: int, max_context: int, max_decodes: int) -> None:
    """Attend from one chunk and some decodes to the first block of `kv_cache`; nothing is stored and nothing returned.

    Chunks of 1, 2, 4, ... `max_tokens` tokens begin a prompt or follow a long context, of `max_context` tokens at most.
    Decodes are one or `max_decodes`, with short and long contexts.
    """
    long = min(_LONG_CONTEXT, max_context)
    chunks = [1 << power for power in range(max_tokens.bit_length())]
    steps = [(chunk, context, 0, 0) for chunk in chunks for context in {chunk, max(chunk, long)}]
    steps += [(1, 1, decodes, min(length, long)) for decodes in {1, max_decodes} for length in (_SHORT_CONTEXT, long)]
    block_size, dtype, caches = kv_cache.shape[3], model.norm.weight.dtype, layer_caches(kv_cache)
    kinds = {getattr(layer.attention, "window", 0): index for index, layer in enumerate(model.layers)}
    for step in steps:
        metadata = _metadata(*step, block_size, kv_cache.device)
        for index in kinds.values():
            attention = model.layers[index].attention
            num_tokens = step[0] + step[2]
            queries = torch.zeros(
                num_tokens, attention.heads[0], attention.head_dim, dtype=dtype, device=kv_cache.device
            )
            attention.attend(queries, caches[index], metadata)


def _metadata(
    chunk: int, context: int, decodes: int, decode_context: int, block_size: int, device: torch.device
) -> AttentionMetadata:
    def integers(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    def tables(rows: int, length: int) -> Tensor:
        return torch.zeros(rows, -(-max(length, 1) // block_size), dtype=torch.int32, device=device)

    return AttentionMetadata(
        slot_mapping=torch.full((chunk + decodes,), -1, dtype=torch.int64, device=device),
        num_prefill_tokens=chunk,
        cu_seqlens_q=integers(0, chunk),
        prefill_context_lens=integers(context),
        prefill_block_tables=tables(1, context),
        max_seqlen_q=chunk,
        max_prefill_context=context,
        decode_context_lens=integers(*[decode_context] * decodes),
        decode_block_tables=tables(decodes, decode_context),
        max_decode_context=decode_context,
        begins_prompts=context == chunk,
    )
