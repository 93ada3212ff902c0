"""Chunks of tokens that are computed beside their cached contexts: of prompts, and of decodes with drafts."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.runner.inputs.arrays import padded
from engine.runner.inputs.sampling_inputs import Array, SamplingInputs
from engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class PrefillInputs:
    """Chunks of tokens, of prompts or of drafts; they follow one another in one array.

    Attributes:
        input_ids, positions: int64[num_tokens].
        slot_mapping: int64[num_tokens], the slot of the KV cache for each token; -1 where its KV is not stored.
        cu_seqlens: int32[chunks + 1], the index of each chunk's first token, then num_tokens.
        context_lens: int32[chunks], tokens of the sequence whose KV is in the cache after the chunk.
        block_tables: int32[chunks, longest], padded with 0.
        sampled_tokens: int64[s], the index of each token from whose logits a new token is sampled: the last of each
            completed prompt, once for each sequence of the request where the others are forked now; and every token of
            a chunk with drafts.
        sampled_positions: int64[s], the positions of the new tokens.
        sampling: parameters of the s samples.
        max_seqlen: tokens of the longest chunk.
        max_context: tokens of the longest context.
        begins_prompts: whether every chunk begins its sequence.
    """

    input_ids: Array
    positions: Array
    slot_mapping: Array
    cu_seqlens: Array
    context_lens: Array
    block_tables: Array
    sampled_tokens: Array
    sampled_positions: Array
    sampling: SamplingInputs
    max_seqlen: int
    max_context: int
    begins_prompts: bool


class Chunk(NamedTuple):
    """Compute `token_ids` from position `start` on, and sample with each of `samples` (parameters and seed) after the
    token of the chunk that `sampled` names for it; KV that is not stored leaves the blocks of `table` as they are."""

    table: list[int]
    start: int
    token_ids: list[int]
    sampled: list[int]
    samples: list[tuple[SamplingParams, int]]
    is_stored: bool = True


def make_chunk_inputs(chunks: abc.Sequence[Chunk], block_size: int) -> PrefillInputs:
    """The arrays of at least one chunk."""
    tables = [np.asarray(chunk.table, np.int64) for chunk in chunks]
    counts = [len(chunk.token_ids) for chunk in chunks]
    positions = [np.arange(chunk.start, chunk.start + count) for chunk, count in zip(chunks, counts, strict=True)]
    slots = [
        table[where // block_size] * block_size + where % block_size if chunk.is_stored else np.full(len(where), -1)
        for chunk, table, where in zip(chunks, tables, positions, strict=True)
    ]
    starts = np.concatenate([[0], np.cumsum(counts)])
    contexts = np.asarray([chunk.start + len(chunk.token_ids) for chunk in chunks], np.int64)
    sampled = [np.asarray(chunk.sampled, np.int64) for chunk in chunks]
    return PrefillInputs(
        input_ids=np.concatenate([np.asarray(chunk.token_ids, np.int64) for chunk in chunks]),
        positions=np.concatenate(positions),
        slot_mapping=np.concatenate(slots),
        cu_seqlens=starts.astype(np.int32),
        context_lens=contexts.astype(np.int32),
        block_tables=padded(tables),
        sampled_tokens=np.concatenate([first + where for first, where in zip(starts[:-1], sampled, strict=True)]),
        sampled_positions=np.concatenate(
            [chunk.start + 1 + where for chunk, where in zip(chunks, sampled, strict=True)]
        ),
        sampling=SamplingInputs.of(sample for chunk in chunks for sample in chunk.samples),
        max_seqlen=max(counts),
        max_context=int(contexts.max()),
        begins_prompts=all(chunk.start == 0 for chunk in chunks),
    )
