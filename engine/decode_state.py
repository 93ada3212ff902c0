"""The decoding sequences as a device sees them: dense rows of tensors that decode steps read and advance.

    row      0       1       2     ...  n-1  | n ...
    tokens   last known token                | stale
    lengths  known tokens, that one included | 0
    tables   KV blocks                       | stale

A decode step computes the token at `lengths - 1` of every row, samples the next and adds one to `lengths`
(`kernels.decode_step`); the host only sends what joined, left or got a block (`engine.step_inputs.RowChanges`).
The tensors stay where they are, so that CUDA graphs can read and write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.step_inputs import RowChanges


class DecodeState:
    """Rows for up to `max_num_seqs` sequences of up to `max_blocks` KV blocks each.

    tokens, lengths, seeds int64[rows]; tables int32[rows, max_blocks]; temperature, top_p float32[rows]; top_k
    int32[rows].
    """

    def __init__(self, max_num_seqs: int, max_blocks: int, device: torch.device) -> None:
        self.tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.tables = torch.zeros(max_num_seqs, max_blocks, dtype=torch.int32, device=device)
        self.temperature = torch.zeros(max_num_seqs, device=device)
        self.top_k = torch.zeros(max_num_seqs, dtype=torch.int32, device=device)
        self.top_p = torch.ones(max_num_seqs, device=device)
        self.seeds = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._num_rows = 0

    def apply(self, changes: RowChanges) -> None:
        """Bring the rows up to date with the plan to execute; the changes lie on the device."""
        if changes.moves.shape[1]:
            sources, targets = changes.moves
            for tensor in vars(self).values():
                if isinstance(tensor, Tensor):
                    tensor[targets] = tensor[sources]
        first, count = changes.num_kept, changes.joined_tokens.shape[0]
        if self._num_rows > first:
            self.lengths[first : self._num_rows] = 0
        self._num_rows = first + count
        if count:
            rows, sampling = slice(first, first + count), changes.joined_sampling
            self.tokens[rows] = changes.joined_tokens
            self.lengths[rows] = changes.joined_lengths
            self.tables[rows, : changes.joined_tables.shape[1]] = changes.joined_tables
            self.temperature[rows] = sampling.temperature
            self.top_k[rows] = sampling.top_k
            self.top_p[rows] = sampling.top_p
            self.seeds[rows] = sampling.seeds
        if changes.growth.shape[1]:
            grown, columns, blocks = changes.growth
            self.tables[grown, columns] = blocks.to(torch.int32)

    @contextmanager
    def blanked(self) -> Iterator[None]:
        """All rows are padding meanwhile, so that decode steps leave no trace."""
        lengths = self.lengths.clone()
        self.lengths.zero_()
        try:
            yield
        finally:
            self.lengths.copy_(lengths)
