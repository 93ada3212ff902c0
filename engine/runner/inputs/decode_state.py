"""The decoding sequences on the device: one row each in dense tensors, which decode steps read and update.

    row      0       1       2     ...  n-1  | n ...
    tokens   last known token                | stale
    lengths  known tokens, that one included | 0
    tables   KV blocks                       | stale

A decode step computes the token at position `lengths - 1` of every row, samples the next token and adds one to
`lengths` (`kernels.decode_step`). The host sends only changes: sequences that joined or left, and appended blocks
(`engine.runner.inputs.step_inputs.RowChanges`). The tensors keep their addresses, so that CUDA graphs can read and
write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.runner.inputs.decode_rows import RowChanges

_ALIGNED_ROWS = 4  # int32 in 16 bytes


class DecodeState:
    """Rows for up to `max_num_seqs` sequences of up to `max_blocks` KV blocks each.

    tokens, lengths, seeds int64[rows]; tables int32[rows, max_blocks]; temperature, top_p float32[rows]; top_k
    int32[rows]. All 8-byte columns lie in one tensor and all 4-byte columns in another, so that moving rows takes few
    kernel launches; each column starts at a multiple of 16 bytes.
    """

    def __init__(self, max_num_seqs: int, max_blocks: int, device: torch.device) -> None:
        num_rows = -(-max_num_seqs // _ALIGNED_ROWS) * _ALIGNED_ROWS
        self._longs = torch.zeros(3, num_rows, dtype=torch.int64, device=device)
        self._words = torch.zeros(3, num_rows, dtype=torch.int32, device=device)
        self.tokens, self.lengths, self.seeds = self._longs[:, :max_num_seqs]
        self.temperature, self.top_p = self._words[:2, :max_num_seqs].view(torch.float32)
        self.top_k = self._words[2, :max_num_seqs]
        self.top_p.fill_(1.0)
        self.tables = torch.zeros(max_num_seqs, max_blocks, dtype=torch.int32, device=device)
        self._num_rows = 0

    def apply(self, changes: RowChanges, prompts: Tensor) -> None:
        """Update the rows for the plan that runs next; the tensors of `changes` are on the device.

        `prompts`, int64[n], are the tokens that the last plan sampled for the prompts which it completed.
        """
        if changes.moves.shape[1]:
            sources, targets = changes.moves
            for rows in (self._longs, self._words):
                rows[:, targets] = rows[:, sources]
            self.tables[targets] = self.tables[sources]
        first, count = changes.num_kept, changes.joined_tokens.shape[0]
        if self._num_rows > first:
            self.lengths[first : self._num_rows] = 0
        self._num_rows = first + count
        if count:
            new, sampling = slice(first, first + count), changes.joined_sampling
            self.tokens[new] = changes.joined_tokens
            if changes.sampled_last.shape[1]:
                rows, samples = changes.sampled_last
                self.tokens[rows] = prompts[samples]
            self.lengths[new] = changes.joined_lengths
            self.tables[new, : changes.joined_tables.shape[1]] = changes.joined_tables
            self.temperature[new] = sampling.temperature
            self.top_k[new] = sampling.top_k
            self.top_p[new] = sampling.top_p
            self.seeds[new] = sampling.seeds
        if changes.growth.shape[1]:
            grown, columns, blocks = changes.growth
            self.tables[grown, columns] = blocks.to(torch.int32)

    @contextmanager
    def padding_only(self) -> Iterator[None]:
        """Inside this context all rows are padding (length 0), so that decode steps change neither rows nor KV."""
        lengths = self.lengths.clone()
        self.lengths.zero_()
        try:
            yield
        finally:
            self.lengths.copy_(lengths)
