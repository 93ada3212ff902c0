"""Runs a model on a paged KV cache, one step at a time; shared by the model tests. Needs torch, not transformers."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from engine.models import build_model
from engine.models.blocks import CausalLM
from engine.models.layers.parallel import TensorParallel
from engine.models.model_config import ModelConfig
from engine.models.weights import load_random, load_safetensors
from engine.runner.cache.kv_cache import cache_shape
from kernels.attention.backends import AttentionMetadata, select_backend

BLOCK_SIZE = 4
NUM_BLOCKS = 64
CPU = torch.device("cpu")


@dataclass
class PagedSequence:
    """A sequence whose tokens are all known in advance, and the blocks for its keys and values."""

    tokens: list[int]
    blocks: list[int]
    num_computed: int = 0


@dataclass
class PagedModel:
    """A model and its KV cache; `free_blocks` are in random order."""

    model: CausalLM
    cache: Tensor
    free_blocks: list[int] = field(default_factory=list)

    @classmethod
    def build(cls, config: ModelConfig, dtype: torch.dtype, tp: TensorParallel, weights: Path | int) -> PagedModel:
        """Build a model with the weights of a folder, or with random weights from a seed."""
        backend = select_backend("torch", CPU, dtype, config.head_dim, BLOCK_SIZE)
        model = build_model(config, tp, backend, dtype, CPU)
        if isinstance(weights, int):
            load_random(model, weights)
        else:
            load_safetensors(model, weights)
        shape = cache_shape(config, NUM_BLOCKS, BLOCK_SIZE, tp.size, dtype)
        blocks = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(0)).tolist()
        return cls(model, torch.full(shape, torch.nan, dtype=dtype), blocks)

    def sequence(
        self, tokens: abc.Sequence[int], prefix_of: PagedSequence | None = None, cached: int = 0
    ) -> PagedSequence:
        """A new sequence, whose first `cached` tokens lie in blocks of the sequence `prefix_of`."""
        blocks = [] if prefix_of is None else prefix_of.blocks[: cached // BLOCK_SIZE]
        num_new = -(-len(tokens) // BLOCK_SIZE) - len(blocks)
        return PagedSequence(list(tokens), blocks + [self.free_blocks.pop() for _ in range(num_new)], cached)

    def step(
        self, prefills: abc.Sequence[tuple[PagedSequence, int]], decodes: abc.Sequence[PagedSequence] = ()
    ) -> list[Tensor]:
        """Compute the next tokens of each sequence: as many as each prefill says, one for each decode.

        Returns:
            For each sequence, the float32 logits `[tokens, V]` of the tokens computed.
        """
        work = [*prefills, *((sequence, 1) for sequence in decodes)]
        spans = [range(sequence.num_computed, sequence.num_computed + count) for sequence, count in work]
        ids = [sequence.tokens[i] for (sequence, _), span in zip(work, spans, strict=True) for i in span]
        metadata = attention_metadata([sequence for sequence, _ in work], spans, len(prefills))
        positions = torch.tensor([i for span in spans for i in span])
        with torch.inference_mode():
            hidden = self.model(torch.tensor(ids), positions, self.cache, metadata)
            logits = self.model.compute_logits(hidden).float()
        for sequence, count in work:
            sequence.num_computed += count
        return list(logits.split([len(span) for span in spans]))


def attention_metadata(
    sequences: abc.Sequence[PagedSequence], spans: abc.Sequence[range], num_prefills: int
) -> AttentionMetadata:
    """Metadata of a step that computes the tokens `spans[i]` of `sequences[i]`: `num_prefills` chunks, then decodes."""
    width = max(len(sequence.blocks) for sequence in sequences)
    tables = torch.zeros(len(sequences), width, dtype=torch.int32)
    for row, sequence in zip(tables, sequences, strict=True):
        row[: len(sequence.blocks)] = torch.tensor(sequence.blocks, dtype=torch.int32)
    slots = [
        sequence.blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE
        for sequence, span in zip(sequences, spans, strict=True)
        for i in span
    ]
    chunks = torch.tensor([0] + [len(span) for span in spans[:num_prefills]])
    contexts = torch.tensor([span.stop for span in spans], dtype=torch.int32)
    return AttentionMetadata(
        slot_mapping=torch.tensor(slots),
        num_prefill_tokens=int(chunks.sum()),
        cu_seqlens_q=chunks.cumsum(0).to(torch.int32),
        prefill_context_lens=contexts[:num_prefills],
        prefill_block_tables=tables[:num_prefills],
        max_seqlen_q=int(chunks.max()),
        max_prefill_context=max(contexts[:num_prefills].tolist(), default=0),
        decode_context_lens=contexts[num_prefills:],
        decode_block_tables=tables[num_prefills:],
        max_decode_context=max(contexts[num_prefills:].tolist(), default=0),
    )


def run_all_ways(model: PagedModel, prompts: abc.Sequence[abc.Sequence[int]]) -> dict[str, list[Tensor]]:
    """Logits of three prompts, `[tokens computed, V]` each, by the way of computing them.

    "prefill" computes all prompts in one step; "chunked" the first prompt in chunks; "decode" the second prompt with a
    decode for each of its last tokens; "cached" the third prompt after its first 12 tokens, which it shares with the
    first prompt.
    """
    first, second, third = prompts
    result = {"prefill": model.step([(model.sequence(prompt), len(prompt)) for prompt in prompts])}
    a, b = model.sequence(first), model.sequence(second)
    chunked = [*model.step([(a, 7)])]
    decoded = model.step([(b, len(second) - 9)])
    while a.num_computed < len(first):
        chunk, token = model.step([(a, min(5, len(first) - a.num_computed))], [b])
        chunked.append(chunk)
        decoded.append(token)
    result["chunked"] = [torch.cat(chunked)]
    c = model.sequence(third, prefix_of=a, cached=12)
    result["cached"] = model.step([(c, len(third) - 12 - 3)])
    while b.num_computed < len(second):
        both = [b, c] if c.num_computed < len(third) else [b]
        logits = model.step([], both)
        decoded.append(logits[0])
        result["cached"] += logits[1:]
    result["decode"] = [torch.cat(decoded)]
    result["cached"] = [torch.cat(result["cached"])]
    return result
