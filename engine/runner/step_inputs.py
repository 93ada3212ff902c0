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
from engine.runner.chunk_inputs import Chunk, PrefillInputs, make_chunk_inputs
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

Drafts = abc.Mapping[Sequence, list[int]]
NO_DRAFTS: Drafts = {}


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
        prefill: the prompt chunks, and all decodes if any of them has drafts; None in a plan without any.
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
    """Turns plans into inputs; `add` gives it the sampling parameters and the seed of each sequence first.

    A plan in which a decode has drafts has no decode rows: each decode is a chunk, behind those of the prompts.

    Attributes:
        sequences: by decode row.
        drafted: of the last plan, all decodes with their drafts, if any has drafts.
    """

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
        self._has_rows = True  # all decodes of the last plan with decodes
        self.sequences: list[Sequence] = []  # by row
        self.drafted: list[tuple[Sequence, list[int]]] = []

    def build(self, plan: StepPlan, number: int = 0, awaited: int = 0, drafts: Drafts = NO_DRAFTS) -> StepInputs:
        """Inputs of the next plan; `build` must be called in the order in which the plans are executed.

        `number` and `awaited` are those of `TransferInputs`.
        """
        self.drafted = [(sequence, drafts.get(sequence, [])) for sequence in plan.decodes] if drafts else []
        rows = self._drop_all_rows() if drafts else self._change_rows(plan)
        num_rows = 0 if drafts else plan.num_decodes
        chunks = [*self._chunks(plan.prefills), *self._verified_chunks()]
        decoding = self._lengths[:num_rows]
        longest = int(decoding.max(initial=0))
        decoding += plan.num_steps
        return StepInputs(
            transfers=transfer_inputs(plan, number, awaited),
            rows=rows,
            prefill=make_chunk_inputs(chunks, self._block_size) if chunks else None,
            num_decodes=num_rows,
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

    def may_draft(self, plan: StepPlan) -> list[Sequence]:
        """The decodes of a plan that are not adjusted: edits of logits need all tokens before, which drafts are not."""
        adjusted = {sequence for sequence, each in self._adjusted.items() if each.is_adjusted}
        return [sequence for sequence in plan.decodes if sequence not in adjusted]

    def drop(self, sequences: abc.Iterable[Sequence]) -> None:
        """Remove sequences that ended or were aborted (or both); the next plan frees the decode rows that they have."""
        for sequence in filter(self._requests.__contains__, sequences):
            params, _ = self._requests.pop(sequence)
            self._adjusted.pop(sequence, None)
            self._num_top_k -= params.top_k > 0
            self._num_top_p -= params.top_p < 1
            self._leaving.append(sequence)

    def _adjustments(self, plan: StepPlan) -> Adjustments | None:
        adjusted = [None if sequence is None else self._adjusted.get(sequence) for sequence in self.sampled(plan)]
        rows = [each if each is not None and each.is_adjusted else None for each in adjusted]
        return make_adjustments(rows, [(self._adjusted.get(chunk.sequence), chunk) for chunk in plan.prefills])

    def sampled(self, plan: StepPlan) -> list[Sequence | None]:
        """The sequence of each sample of the last plan, in order; None for those that follow a draft."""
        samples: list[Sequence | None] = [c.sequence for c in plan.prefills for _ in range(c.num_samples)]
        for sequence, drafts in self.drafted:
            samples += [sequence, *(None for _ in drafts)]
        return samples if self.drafted else [*samples, *self.sequences[: plan.num_decodes]]

    def _drop_all_rows(self) -> RowChanges:
        self._has_rows = False
        self._leaving.clear()
        self._row_of.clear()
        self._num_blocks.clear()
        self.sequences = []
        return self._joining([], columns([], 2), 0, columns([], 3))

    def _change_rows(self, plan: StepPlan) -> RowChanges:
        moves = self._drop_rows([*self._leaving, *plan.preempted, *plan.paused, *self._rewritten])
        self._leaving.clear()
        num_kept = len(self.sequences)
        joined = plan.fresh_decodes if self._has_rows else list(plan.decodes)
        self._has_rows = self._has_rows or bool(joined)
        if self._rewritten and plan.num_decodes:
            fresh = set(joined)
            joined = [*joined, *(s for s in self._rewritten if s in plan.decodes and s not in fresh)]
            self._rewritten.clear()
        for sequence in joined:
            self._row_of[sequence] = len(self.sequences)
            self.sequences.append(sequence)
            self._num_blocks.append(len(sequence.block_table))
        self._set_lengths(moves, num_kept, np.asarray([s.num_tokens for s in joined], np.int64))
        return self._joining(joined, moves, num_kept, self._grow(plan, set(joined)))

    def _joining(self, joined: list[Sequence], moves: Ints, num_kept: int, growth: Ints) -> RowChanges:
        return RowChanges(
            moves=moves,
            num_kept=num_kept,
            joined_tokens=np.asarray([s.token_ids[-1] for s in joined], np.int64),  # type: ignore[index]
            joined_lengths=np.asarray([s.num_tokens for s in joined], np.int64),
            joined_tables=padded([s.block_table for s in joined]),
            joined_sampling=SamplingInputs.of(self._requests[s] for s in joined),
            growth=growth,
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

    def _chunks(self, prefills: list[PrefillChunk]) -> abc.Iterator[Chunk]:
        """Prompt chunks, with the samples of each completed prompt."""
        for sequence, start, num_tokens, is_last in prefills:
            params, seed = self._requests[sequence]
            num_samples = 1 + sequence.num_forks if is_last else 0
            samples = [(params, seed + i & _SEED_BITS) for i in range(num_samples)]
            tokens = sequence.token_ids[start : start + num_tokens]  # type: ignore[index]
            yield Chunk(sequence.block_table, start, tokens, [num_tokens - 1] * num_samples, samples)

    def _verified_chunks(self) -> abc.Iterator[Chunk]:
        """The last known token and the drafts of each decode; a token is sampled after each of them."""
        for sequence, drafts in self.drafted:
            tokens = [sequence.token_ids[-1], *drafts]  # type: ignore[index]
            sampled = list(range(len(tokens)))
            samples = [self._requests[sequence]] * len(tokens)
            yield Chunk(sequence.block_table, sequence.num_tokens - 1, tokens, sampled, samples)
