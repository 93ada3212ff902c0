"""Decoding sequences whose drafts a real engine verifies: how many tokens a step brings is known when it has run.

A step reserves what the fastest growth needs: with `L` known tokens a sequence verifies at most
min(num_drafts, longest - 1 - L) drafts and needs room for L and these drafts, as `RaggedDecodes` has it. Slots of
drafts that are not accepted are written again by the next step.

When a step has run, each sequence is visited to add its tokens, and what it needs next is noted then: there are no
timers. The next drafts depend on these tokens, so each step is planned on its own.
"""

from __future__ import annotations

from collections import abc

import numpy as np

from engine.core.clock import DecodeClock
from engine.core.decodes.interface import Decodes, can_be_found
from engine.core.flight import Verified
from engine.core.kv.block_manager import BlockManager
from engine.core.plan import BlockGrowth, Drafts
from engine.core.sequence import Sequence
from engine.core.work import ChunkWork, StepWork


class UnforeseenDecodes(Decodes):
    """Sequences that decode up to 1 + num_drafts tokens per step, in the order they joined."""

    def __init__(self, block_size: int, longest: int, num_drafts: int) -> None:
        super().__init__(tokens_per_decode=1 + num_drafts)
        self._block_size = block_size
        self._longest = longest
        self._num_drafts = num_drafts
        self._clocks: dict[Sequence, DecodeClock] = {}
        self._gains: abc.Mapping[Sequence, int] = {}  # of the last step
        self._due: dict[Sequence, int] = {}  # blocks that sequences need for the next step
        self._filled: dict[Sequence, None] = {}  # findable ones whose known tokens fill more blocks than are registered
        self._num_context_tokens = 0
        self._num_squared_context_tokens = 0

    def join(self, sequence: Sequence, *, is_padded: bool = False) -> None:
        clock = self._clocks[sequence] = DecodeClock()
        sequence.start_decoding(clock)
        self.sequences[sequence] = None
        self.fresh[sequence] = None
        if can_be_found(sequence):
            self.findable[sequence] = None
        self._count(sequence.num_tokens, sign=1)
        self._note_needs(sequence, sequence.num_tokens)

    def remove(self, sequence: Sequence) -> None:
        del self.sequences[sequence], self._clocks[sequence]
        for some in (self.fresh, self.findable, self._due, self._filled):
            some.pop(sequence, None)
        self._count(sequence.num_tokens, sign=-1)

    def next_event(self) -> int:
        return 1

    def work(self, chunks: abc.Sequence[ChunkWork], num_copied_blocks: int) -> StepWork:
        return StepWork(
            chunks, len(self.sequences), self._num_context_tokens, self._num_squared_context_tokens, num_copied_blocks,
            self.tokens_per_decode,
        )  # fmt: skip

    def num_blocks_due(self, ahead: int = 0) -> int:
        return sum(self._due.values())

    @property
    def num_step_tokens(self) -> int:
        return sum(1 + self.num_drafts_of(sequence) for sequence in self.sequences)

    def num_drafts_of(self, sequence: Sequence) -> int:
        return min(self._num_drafts, self._longest - 1 - sequence.num_tokens)

    def num_found(self, sequence: Sequence) -> int:
        return sequence.num_tokens - self._gains.get(sequence, 1)

    def blocks_due(self) -> abc.Mapping[Sequence, int]:
        return self._due

    def grow(self, ahead: int, blocks: BlockManager) -> BlockGrowth:
        owners = [sequence for sequence, count in self._due.items() for _ in range(count)]
        self._due = {}
        taken = blocks.take(len(owners))
        for sequence, block in zip(owners, taken, strict=True):
            sequence.block_table.append(block)
        return BlockGrowth(ahead, owners, taken)

    def run(self, num_steps: int, blocks: BlockManager) -> list[BlockGrowth]:
        return []

    def affordable_steps(self, limit: int, num_free_blocks: int) -> int:
        return limit

    def filling(self, ahead: int) -> abc.Iterable[tuple[Sequence, int]]:
        return [(sequence, sequence.num_tokens) for sequence in self._filled]

    def steps_until(self, sequence: Sequence, num_tokens: int) -> int:
        return -(-(num_tokens - sequence.num_tokens) // self.tokens_per_decode)

    def advance(self, num_steps: int, verified: Verified | None = None) -> list[Sequence]:
        assert num_steps == 1 and verified is not None, "a step brings what its executor says"
        gains = self._gains = verified.gains
        finished = []
        num_gained = 0
        self.fresh.clear()
        self._filled.clear()
        for sequence, clock in self._clocks.items():
            gain = gains[sequence]
            length = sequence.num_tokens
            assert 0 < gain <= min(self.tokens_per_decode, sequence.end_length - length)
            clock.step += gain
            num_gained += gain
            self._num_squared_context_tokens += gain * (2 * length + gain)
            if length + gain == sequence.end_length:
                finished.append(sequence)
            else:
                self._note_needs(sequence, length + gain)
        self._num_context_tokens += num_gained
        self.drafts = Drafts(np.array([verified.num_drafted]), np.array([num_gained - len(self._clocks)]))
        for sequence in finished:
            self.remove(sequence)
        return finished

    def _note_needs(self, sequence: Sequence, length: int) -> None:
        """Note the blocks that a sequence of `length` tokens needs next and has filled."""
        room = min(length + self._num_drafts, self._longest - 1)
        num_missing = -(-room // self._block_size) - len(sequence.block_table)
        if num_missing > 0:
            self._due[sequence] = num_missing
        if length // self._block_size > sequence.num_registered_blocks and sequence in self.findable:
            self._filled[sequence] = None

    def _count(self, length: int, sign: int) -> None:
        self._num_context_tokens += sign * length
        self._num_squared_context_tokens += sign * length * length

    def check_integrity(self) -> None:
        """Prove that sums and needs say what the sequences say; raises AssertionError."""
        assert self._num_context_tokens == sum(s.num_tokens for s in self.sequences)
        assert self._num_squared_context_tokens == sum(s.num_tokens**2 for s in self.sequences)
        assert self.sequences.keys() == self._clocks.keys()
        assert (
            self.fresh.keys() | self.findable.keys() | self._due.keys() | self._filled.keys() <= self.sequences.keys()
        )
        for sequence in self.sequences:
            assert sequence.num_computed_tokens == sequence.num_tokens - 1 < sequence.end_length - 1
            room = sequence.num_tokens + self.num_drafts_of(sequence)
            num_blocks = len(sequence.block_table) + self._due.get(sequence, 0)
            assert num_blocks * self._block_size >= room, "blocks for drafts are missing"
