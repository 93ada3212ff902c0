"""Turns a step plan into the arrays that a rank needs to execute it. Decode rows are sent as changes only.

Decoding sequences live in dense rows of device tensors (`engine.runner.decode_state`). `StepBuilder`, in the engine's
process, knows which sequence has which row. It makes numpy arrays, so that every rank can be sent the same inputs.
`engine.runner.staging` copies the inputs to the device: the same dataclasses, with tensors of equal shapes and dtypes.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

import numpy as np

from engine.core.plan import PrefillChunk, StepPlan
from engine.core.sequence import Sequence
from engine.runner.arrays import columns, padded
from engine.runner.sampling_inputs import (
    AdjustedSequence,
    Adjustments,
    Array,
    Ints,
    SamplingInputs,
    TokenLists,
    make_adjustments,
    needs_adjusting,
)
from engine.runner.transfer_inputs import TransferInputs, transfer_inputs
from engine.sampling_params import SamplingParams

_SEED_BITS = 2**63 - 1


@dataclass(frozen=True)
class PrefillInputs:
    """Prompt chunks; their tokens follow one another in one array.

    Attributes:
        input_ids, positions: int64[num_tokens].
        slot_mapping: int64[num_tokens], the slot of the KV cache for each token.
        cu_seqlens: int32[chunks + 1], the index of each chunk's first token, then num_tokens.
        context_lens: int32[chunks], tokens of the sequence whose KV is in the cache after the chunk.
        block_tables: int32[chunks, longest], padded with 0.
        sampled_tokens: int64[s], the index of the last token of each completed prompt, from whose logits a new token is
            sampled; once for each sequence of the request where the others are forked now.
        sampled_positions: int64[s], the positions of the new tokens.
        sampling: parameters of the s samples.
        max_seqlen: tokens of the longest chunk.
        max_context: tokens of the longest context.
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


@dataclass(frozen=True)
class RowChanges:
    """How the decode rows differ from those of the last plan; the changes are applied in the order of the fields.

    Example: rows 0 to 3 hold sequences a, b, c, d; b leaves and e joins. `moves` is [[3], [1]] (d moves to row 1),
    `num_kept` is 3 (a, d, c), and e gets row 3.

    Attributes:
        moves: int64[2, m]; row `moves[0, i]`, as it was before all moves, overwrites row `moves[1, i]`.
        num_kept: number of rows after the moves.
        joined_tokens: int64[j], the last token of each new row; the new rows begin at row `num_kept`.
        joined_lengths: int64[j], known tokens of each new row.
        joined_tables: int32[j, longest], the block table of each new row, padded with 0.
        joined_sampling: parameters of the new rows.
        growth: int64[3, g], (row, column, block) of each entry appended to a block table.
    """

    moves: Array
    num_kept: int
    joined_tokens: Array
    joined_lengths: Array
    joined_tables: Array
    joined_sampling: SamplingInputs
    growth: Array


@dataclass(frozen=True)
class StepInputs:
    """Everything that a rank needs to execute a plan.

    Attributes:
        transfers: copies of blocks, made before the first step or beside the steps.
        rows: changes of the decode rows, applied before the first step.
        prefill: the prompt chunks; None in a plan without any.
        num_decodes: number of decode rows.
        num_steps: number of decode steps.
        max_decode_context: tokens of the longest decoding sequence in the plan's first step, the token to compute
            included.
        uses_top_k, uses_top_p: whether any waiting or running request uses top-k or top-p.
        adjustments: what the rows of adjusted sequences need; None in a plan without any.
    """

    transfers: TransferInputs
    rows: RowChanges
    prefill: PrefillInputs | None
    num_decodes: int
    num_steps: int
    max_decode_context: int
    uses_top_k: bool
    uses_top_p: bool
    adjustments: Adjustments | None


class StepBuilder:
    """Turns plans into inputs; `add` gives it the sampling parameters and the seed of each sequence first."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._requests: dict[Sequence, tuple[SamplingParams, int]] = {}
        self._adjusted: dict[Sequence, AdjustedSequence] = {}  # those that are adjusted now or may be later
        self._num_top_k = self._num_top_p = 0
        self._row_of: dict[Sequence, int] = {}
        self._num_blocks: list[int] = []
        self._lengths = np.zeros(0, np.int64)  # by row, equal to `DecodeState.lengths`
        self._leaving: list[Sequence] = []
        self._rewritten: dict[Sequence, None] = {}  # decoding ones whose rows are out of date
        self.sequences: list[Sequence] = []  # by row

    def build(self, plan: StepPlan, number: int = 0, awaited: int = 0) -> StepInputs:
        """Inputs of the next plan; `build` must be called in the order in which the plans are executed.

        `number` and `awaited` are those of `TransferInputs`.
        """
        rows = self._change_rows(plan)
        decoding = self._lengths[: plan.num_decodes]
        longest = int(decoding.max(initial=0))
        decoding += plan.num_steps
        return StepInputs(
            transfers=transfer_inputs(plan, number, awaited),
            rows=rows,
            prefill=self._prefill(plan.prefills) if plan.prefills else None,
            num_decodes=plan.num_decodes,
            num_steps=plan.num_steps,
            max_decode_context=longest,
            uses_top_k=self._num_top_k > 0,
            uses_top_p=self._num_top_p > 0,
            adjustments=self._adjustments(plan) if self._adjusted else None,
        )

    def add(
        self,
        sequence: Sequence,
        params: SamplingParams,
        seed: int,
        end_tokens: abc.Iterable[int] = (),
        bad_words: TokenLists = (),
    ) -> None:
        """Register a sequence; must be called before a plan contains it.

        Its seed is `seed`; that of the i-th sequence forked from it, counted from 1, is `seed + i`. `end_tokens` and
        `bad_words` are those of `AdjustedSequence`.
        """
        self._requests[sequence] = params, seed & _SEED_BITS
        if params.min_tokens or params.prompt_logprobs is not None or needs_adjusting(params, bad_words):
            self._adjusted[sequence] = AdjustedSequence(sequence, params, end_tokens, bad_words)
        self._num_top_k += params.top_k > 0
        self._num_top_p += params.top_p < 1

    def add_forks(self, sequence: Sequence, forks: abc.Iterable[Sequence]) -> None:
        """Register all sequences that were forked from `sequence`, in their order."""
        params, seed = self._requests[sequence]
        adjusted = self._adjusted.get(sequence)
        end_tokens, bad_words = ((), ()) if adjusted is None else (adjusted.end_tokens, adjusted.bad_words)
        for i, fork in enumerate(forks, 1):
            self.add(fork, params, seed + i, end_tokens, bad_words)
            if adjusted is not None:
                self._adjusted[fork].num_prompt_logprobs = adjusted.num_prompt_logprobs

    def rewrite(self, sequences: abc.Iterable[Sequence]) -> None:
        """Send the rows of these sequences again, whose tokens or blocks were changed between two plans."""
        self._rewritten.update(dict.fromkeys(sequences))

    def num_prompt_logprobs(self, sequence: Sequence) -> int:
        """Prompt tokens, after the first, whose log probabilities the inputs built so far ask for."""
        return self._adjusted[sequence].num_prompt_logprobs if sequence in self._adjusted else 0

    def is_adjusted(self, plan: StepPlan) -> bool:
        """Whether the plan decodes an adjusted sequence, so that it must have one step."""
        return any(each.is_adjusted and sequence in plan.decodes for sequence, each in self._adjusted.items())

    def drop(self, sequences: abc.Iterable[Sequence]) -> None:
        """Remove sequences that ended or were aborted (or both); the next plan frees the decode rows that they have."""
        for sequence in filter(self._requests.__contains__, sequences):
            params, _ = self._requests.pop(sequence)
            self._adjusted.pop(sequence, None)
            self._num_top_k -= params.top_k > 0
            self._num_top_p -= params.top_p < 1
            self._leaving.append(sequence)

    def _adjustments(self, plan: StepPlan) -> Adjustments | None:
        samples = [chunk.sequence for chunk in plan.prefills for _ in range(chunk.num_samples)]
        adjusted = [self._adjusted.get(sequence) for sequence in (*samples, *self.sequences[: plan.num_decodes])]
        rows = [each if each is not None and each.is_adjusted else None for each in adjusted]
        return make_adjustments(rows, [(self._adjusted.get(chunk.sequence), chunk) for chunk in plan.prefills])

    def _change_rows(self, plan: StepPlan) -> RowChanges:
        moves = self._drop_rows([*self._leaving, *plan.preempted, *plan.paused, *self._rewritten])
        self._leaving.clear()
        num_kept = len(self.sequences)
        joined = plan.fresh_decodes
        if self._rewritten and plan.num_decodes:
            fresh = set(joined)
            joined = [*joined, *(s for s in self._rewritten if s in plan.decodes and s not in fresh)]
            self._rewritten.clear()
        for sequence in joined:
            self._row_of[sequence] = len(self.sequences)
            self.sequences.append(sequence)
            self._num_blocks.append(len(sequence.block_table))
        lengths = np.asarray([s.num_tokens for s in joined], np.int64)
        self._set_lengths(moves, num_kept, lengths)
        return RowChanges(
            moves=moves,
            num_kept=num_kept,
            joined_tokens=np.asarray([s.token_ids[-1] for s in joined], np.int64),  # type: ignore[index]
            joined_lengths=lengths,
            joined_tables=padded([s.block_table for s in joined]),
            joined_sampling=SamplingInputs.of(self._requests[s] for s in joined),
            growth=self._grow(plan, set(joined)),
        )

    def _drop_rows(self, leaving: abc.Iterable[Sequence]) -> Ints:
        """Remove the rows of `leaving`, filling each gap with the last row; returns the moves, int64[2, m]."""
        origin: dict[int, int] = {}  # row -> the row that its new content had before all moves
        for sequence in leaving:
            row = self._row_of.pop(sequence, None)
            if row is None:
                continue
            moved, blocks = self.sequences.pop(), self._num_blocks.pop()
            last = len(self.sequences)
            source = origin.pop(last, last)
            if moved is not sequence:
                origin[row] = source
                self.sequences[row], self._num_blocks[row], self._row_of[moved] = moved, blocks, row
        return columns([(source, target) for target, source in origin.items()], 2)

    def _set_lengths(self, moves: Ints, num_kept: int, joined: Ints) -> None:
        self._lengths[moves[1]] = self._lengths[moves[0]]
        num_rows = num_kept + len(joined)
        if num_rows > len(self._lengths):
            self._lengths = np.resize(self._lengths, 2 * num_rows)
        self._lengths[num_kept:num_rows] = joined

    def _grow(self, plan: StepPlan, joined: set[Sequence]) -> Ints:
        """Table entries that the plan appends, int64[3, g]; rows that join now are sent with their whole table."""
        entries = []
        for each in plan.growth:
            for sequence, block in zip(each.sequences, each.blocks, strict=True):
                if sequence not in joined:
                    row = self._row_of[sequence]
                    entries.append((row, self._num_blocks[row], block))
                    self._num_blocks[row] += 1
        return columns(entries, 3)

    def _prefill(self, chunks: list[PrefillChunk]) -> PrefillInputs:
        size = self._block_size
        tables = [np.asarray(chunk.sequence.block_table, np.int64) for chunk in chunks]
        positions = [np.arange(chunk.start, chunk.start + chunk.num_tokens) for chunk in chunks]
        slots = [table[where // size] * size + where % size for table, where in zip(tables, positions, strict=True)]
        tokens = [
            np.asarray(chunk.sequence.token_ids[chunk.start : chunk.start + chunk.num_tokens], np.int64)  # type: ignore[index]
            for chunk in chunks
        ]
        counts = [chunk.num_tokens for chunk in chunks]
        ends = np.cumsum(counts)
        contexts = np.asarray([chunk.start + chunk.num_tokens for chunk in chunks], np.int64)
        num_samples = [chunk.num_samples for chunk in chunks]
        return PrefillInputs(
            input_ids=np.concatenate(tokens),
            positions=np.concatenate(positions),
            slot_mapping=np.concatenate(slots),
            cu_seqlens=np.concatenate([[0], ends]).astype(np.int32),
            context_lens=contexts.astype(np.int32),
            block_tables=padded(tables),
            sampled_tokens=ends.repeat(num_samples) - 1,
            sampled_positions=contexts.repeat(num_samples),
            sampling=SamplingInputs.of(self._samples(chunks)),
            max_seqlen=max(counts),
            max_context=int(contexts.max()),
        )

    def _samples(self, chunks: list[PrefillChunk]) -> abc.Iterator[tuple[SamplingParams, int]]:
        """Parameters and seed of each sample of the completed prompts."""
        for chunk in chunks:
            params, seed = self._requests[chunk.sequence]
            for i in range(chunk.num_samples):
                yield params, seed + i & _SEED_BITS
