"""Runs a model on a paged KV cache, one step at a time: what the model tests share. Needs torch, not transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from engine.models import build_model
from engine.models.blocks import CausalLM
from engine.models.model_config import ModelConfig
from engine.models.parallel import TensorParallel
from engine.models.weights import load_random, load_safetensors
from kernels.attention import AttentionMetadata, select_backend

BLOCK_SIZE = 4
NUM_BLOCKS = 64
CPU = torch.device("cpu")


@dataclass
class PagedSequence:
    """A sequence of known tokens, and the blocks that hold its keys and values."""

    tokens: list[int]
    blocks: list[int]
    num_computed: int = 0


@dataclass
class PagedModel:
    """A model and its cache; blocks are handed out in a scrambled order."""

    model: CausalLM
    cache: Tensor
    free_blocks: list[int] = field(default_factory=list)

    @classmethod
    def build(cls, config: ModelConfig, dtype: torch.dtype, tp: TensorParallel, weights: Path | int) -> PagedModel:
        """From a model folder, or with random weights from a seed."""
        backend = select_backend("torch", CPU, dtype, config.head_dim, BLOCK_SIZE)
        model = build_model(config, tp, backend, dtype, CPU)
        if isinstance(weights, int):
            load_random(model, weights)
        else:
            load_safetensors(model, weights)
        kv_heads = max(1, config.num_kv_heads // tp.size)
        shape = (config.num_layers, 2, NUM_BLOCKS, BLOCK_SIZE, kv_heads, config.head_dim)
        blocks = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(0)).tolist()
        return cls(model, torch.full(shape, torch.nan, dtype=dtype), blocks)

    def sequence(self, tokens: Sequence[int], prefix_of: PagedSequence | None = None, cached: int = 0) -> PagedSequence:
        """A sequence whose first `cached` tokens lie in the blocks of another one."""
        blocks = [] if prefix_of is None else prefix_of.blocks[: cached // BLOCK_SIZE]
        num_new = -(-len(tokens) // BLOCK_SIZE) - len(blocks)
        return PagedSequence(list(tokens), blocks + [self.free_blocks.pop() for _ in range(num_new)], cached)

    def step(
        self, prefills: Sequence[tuple[PagedSequence, int]], decodes: Sequence[PagedSequence] = ()
    ) -> list[Tensor]:
        """Compute that many next tokens of each prefill, one of each decode: float32 logits `[tokens, V]` of each."""
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
    sequences: Sequence[PagedSequence], spans: Sequence[range], num_prefills: int
) -> AttentionMetadata:
    """Of a step that computes the tokens `spans[i]` of `sequences[i]`; the first `num_prefills` are prefill chunks."""
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


def run_all_ways(model: PagedModel, prompts: Sequence[Sequence[int]]) -> dict[str, list[Tensor]]:
    """Logits of every computed token of three prompts, by how they were computed: `[len(prompt) - skipped, V]` each.

    The third prompt begins with the first 12 tokens of the first one; "cached" computes only what follows them.
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
