"""Which decoding sequence has which row of the device's tensors (`engine.runner.inputs.decode_state`), and what
changes."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

import numpy as np

from engine.core.plan import StepPlan
from engine.core.sequence import Sequence
from engine.runner.inputs.arrays import columns, padded
from engine.runner.inputs.sampling_inputs import Array, Ints, SamplingInputs
from engine.sampling_params import SamplingParams

Requests = abc.Mapping[Sequence, tuple[SamplingParams, int]]
_PADDING = SamplingParams(temperature=0), 0  # of rows whose tokens are dropped
NO_SAMPLES: abc.Mapping[Sequence, int] = {}


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
        sampled_last: int64[2, p]; the token of new row `sampled_last[0, i]` is not known on the host yet: it is sample
            `sampled_last[1, i]` of the prompts that the last plan completed.
        growth: int64[3, g], (row, column, block) of each entry appended to a block table.
    """

    moves: Array
    num_kept: int
    joined_tokens: Array
    joined_lengths: Array
    joined_tables: Array
    joined_sampling: SamplingInputs
    sampled_last: Array
    growth: Array


class DecodeRows:
    """The rows as the last plan that was built has them.

    Attributes:
        sequences: by row.
        lengths: known tokens by row, equal to `DecodeState.lengths`; more entries than rows.
    """

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.lengths = np.zeros(0, np.int64)
        self._row_of: dict[Sequence, int] = {}
        self._num_blocks: list[int] = []
        self._leaving: list[Sequence] = []
        self._are_all = True  # the rows are all decodes of the last plan with decodes

    def leave(self, sequence: Sequence) -> None:
        """Free the row that a sequence may have, in the next plan."""
        self._leaving.append(sequence)

    def clear(self) -> RowChanges:
        """Free all rows, for a plan whose decodes are chunks."""
        self._are_all = False
        self._leaving.clear()
        self._row_of.clear()
        self._num_blocks.clear()
        self.sequences = []
        return self._changes([], columns([], 2), 0, columns([], 3), {}, NO_SAMPLES)

    def change(self, plan: StepPlan, requests: Requests, samples: abc.Mapping[Sequence, int]) -> RowChanges:
        """Make the rows those of a plan.

        Args:
            requests: sampling parameters and seeds of at least those who join.
            samples: for those whose last token is not known on the host: which sample of the last plan it is.
        """
        joined = self.joining(plan)
        leaving = dict.fromkeys([*self._leaving, *plan.preempted, *plan.paused])
        num_staying = len(self.sequences) - sum(sequence in self._row_of for sequence in leaving)
        if plan.num_decodes and num_staying + len(joined) > plan.num_decodes:
            # Sequences that end with a plan which is not committed yet take no part in this one.
            leaving |= {sequence: None for sequence in self.sequences if sequence not in plan.decodes}
        moves = self._drop(leaving)
        self._leaving.clear()
        num_kept = len(self.sequences)
        self._are_all = self._are_all or bool(joined)
        for sequence in joined:
            self._row_of[sequence] = len(self.sequences)
            self.sequences.append(sequence)
            self._num_blocks.append(len(sequence.block_table))
        self._set_lengths(moves, num_kept, np.asarray([s.num_tokens for s in joined], np.int64))
        return self._changes(joined, moves, num_kept, self._grow(plan, set(joined)), requests, samples)

    def joining(self, plan: StepPlan) -> list[Sequence]:
        """Who gets a row with a plan."""
        return plan.fresh_decodes if self._are_all else list(plan.decodes)

    def _changes(
        self,
        joined: list[Sequence],
        moves: Ints,
        num_kept: int,
        growth: Ints,
        requests: Requests,
        samples: abc.Mapping[Sequence, int],
    ) -> RowChanges:
        sampled = [(num_kept + i, samples[s]) for i, s in enumerate(joined) if s in samples] if samples else []
        return RowChanges(
            moves=moves,
            num_kept=num_kept,
            joined_tokens=np.asarray([s.token_ids[-1] if s.token_ids else 0 for s in joined], np.int64),
            joined_lengths=np.asarray([s.num_tokens for s in joined], np.int64),
            joined_tables=padded([s.block_table for s in joined]),
            joined_sampling=SamplingInputs.of(requests.get(s, _PADDING) for s in joined),
            sampled_last=columns(sampled, 2),
            growth=growth,
        )

    def _drop(self, leaving: abc.Iterable[Sequence]) -> Ints:
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
        self.lengths[moves[1]] = self.lengths[moves[0]]
        num_rows = num_kept + len(joined)
        if num_rows > len(self.lengths):
            self.lengths = np.resize(self.lengths, 2 * num_rows)
        self.lengths[num_kept:num_rows] = joined

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
