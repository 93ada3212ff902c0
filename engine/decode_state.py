"""The decoding sequences as a device sees them: dense rows of tensors that decode steps read and advance.

    row      0       1       2     ...  n-1  | n ...
    tokens   last known token                | stale
    lengths  known tokens, that one included | 0
    tables   KV blocks                       | stale

A decode step computes the token at `lengths - 1` of every row, samples the next and adds one to `lengths`; the host
only sends what joined, left or got a block (`engine.step_inputs.RowChanges`).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.step_inputs import RowChanges, SamplingInputs


class SamplingState:
    """Sampling parameters by row: temperature and top_p float32[n], top_k int32[n], seeds int64[n]."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.temperature = torch.zeros(num_rows, device=device)
        self.top_k = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self.top_p = torch.ones(num_rows, device=device)
        self.seeds = torch.zeros(num_rows, dtype=torch.int64, device=device)

    @classmethod
    def of(cls, inputs: SamplingInputs, device: torch.device) -> SamplingState:
        state = cls(len(inputs.seeds), device)
        state.write(0, inputs)
        return state

    def write(self, first: int, inputs: SamplingInputs) -> None:
        """Set the rows from `first` on."""
        rows = slice(first, first + len(inputs.seeds))
        for target, source in zip(self.tensors(), vars(inputs).values(), strict=True):
            target[rows] = torch.from_numpy(source)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.temperature, self.top_k, self.top_p, self.seeds


class DecodeState:
    """Rows for up to `max_num_seqs` sequences of up to `max_blocks` KV blocks each."""

    def __init__(self, max_num_seqs: int, max_blocks: int, device: torch.device) -> None:
        self.tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.tables = torch.zeros(max_num_seqs, max_blocks, dtype=torch.int32, device=device)
        self.sampling = SamplingState(max_num_seqs, device)
        self._num_rows = 0

    def apply(self, changes: RowChanges) -> None:
        """Bring the rows up to date with the plan to execute."""
        device = self.tokens.device
        state = (self.tokens, self.lengths, self.tables, *self.sampling.tensors())
        for source, target in changes.moves.tolist():
            for tensor in state:
                tensor[target] = tensor[source]
        first, count = changes.num_kept, len(changes.joined_tokens)
        if self._num_rows > first:
            self.lengths[first : self._num_rows] = 0
        self._num_rows = first + count
        if count:
            rows = slice(first, first + count)
            self.tokens[rows] = _to(changes.joined_tokens, device)
            self.lengths[rows] = _to(changes.joined_lengths, device)
            self.tables[rows, : changes.joined_tables.shape[1]] = _to(changes.joined_tables, device).to(torch.int32)
            self.sampling.write(first, changes.joined_sampling)
        if changes.growth.size:
            rows_, columns, blocks = _to(np.ascontiguousarray(changes.growth), device)
            self.tables[rows_, columns] = blocks.to(torch.int32)


def _to(array: NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)
