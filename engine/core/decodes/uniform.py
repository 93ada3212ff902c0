"""Decoding sequences that all grow by one token per decode step, kept so that a step costs nothing per sequence.

What happens at which step is known when a sequence joins: with `t` the decode clock and `L` its length at the time,

    it ends when the clock reaches          t + end_length - L
    it needs a new block at every step s    with s = t + 1 - L  (mod block_size)

because step s computes the token at position length - 1. Both are kept in buckets, and the contexts' sum and sum of
squares are running sums: k steps turn S1 into S1 + kn and S2 into S2 + 2k S1 + k^2 n for n sequences.
"""

from __future__ import annotations

from collections import abc
from heapq import heappop, heappush
from typing import Any, Final

from engine.core.clock import DecodeClock
from engine.core.decodes.interface import NEVER, Decodes, can_be_found
from engine.core.flight import Verified
from engine.core.kv.block_manager import BlockManager
from engine.core.plan import BlockGrowth
from engine.core.sequence import Sequence
from engine.core.work import ChunkWork, StepWork

_NOBODY: Final[list[Sequence]] = []
_NO_GROWTH: Final = BlockGrowth(0, [], [])


class UniformDecodes(Decodes):
    """Sequences that decode one token per step, in the order they joined."""

    def __init__(self, block_size: int) -> None:
        super().__init__(tokens_per_decode=1)
        self.clock = DecodeClock()
        self._num_context_tokens = 0
        self._num_squared_context_tokens = 0
        self._block_size = block_size
        self._boundary: dict[int, list[Sequence]] = {}  # phase -> sequences
        self._finish: dict[int, list[Sequence]] = {}  # clock value -> sequences that end at it
        self._finish_steps: list[int] = []  # heap of the keys of _finish

    def join(self, sequence: Sequence, *, is_padded: bool = False) -> None:
        length = sequence.num_tokens
        sequence.start_decoding(self.clock)
        offset = self.clock.step - length
        phase, end = (offset + 1) % self._block_size, offset + sequence.end_length
        self.sequences[sequence] = None
        self.fresh[sequence] = None
        self._num_context_tokens += length
        self._num_squared_context_tokens += length * length
        if sequence.hashes is not None and can_be_found(sequence):
            self.findable[sequence] = None
        bucket = self._boundary.get(phase)
        if bucket is None:
            bucket = self._boundary[phase] = []
        bucket.append(sequence)
        ending = self._finish.get(end)
        if ending is None:
            ending = self._finish[end] = []
            heappush(self._finish_steps, end)
        ending.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._take_out(sequence)
        self._finish[self.clock.step - sequence.num_tokens + sequence.end_length].remove(sequence)

    def _take_out(self, sequence: Sequence) -> None:
        """Take a sequence out of all but those that end at its time."""
        length = sequence.num_tokens
        del self.sequences[sequence]
        if self.fresh:
            self.fresh.pop(sequence, None)
        self._num_context_tokens -= length
        self._num_squared_context_tokens -= length * length
        if self.findable:
            self.findable.pop(sequence, None)
        phase = (self.clock.step - length + 1) % self._block_size
        bucket = self._boundary[phase]
        bucket.remove(sequence)
        if not bucket:
            del self._boundary[phase]

    def next_event(self) -> int:
        while not self._finish[self._finish_steps[0]]:
            del self._finish[heappop(self._finish_steps)]
        return self._finish_steps[0] - self.clock.step

    def work(self, chunks: abc.Sequence[ChunkWork], num_copied_blocks: int) -> StepWork:
        num_decodes, contexts = len(self.sequences), self._num_context_tokens
        squared = self._num_squared_context_tokens
        return StepWork(chunks, num_decodes, contexts, squared, num_copied_blocks)

    def num_blocks_due(self, ahead: int = 0) -> int:
        return len(self._due(ahead))

    @property
    def num_step_tokens(self) -> int:
        return len(self.sequences)

    def num_drafts_of(self, sequence: Sequence) -> int:
        return 0

    def num_found(self, sequence: Sequence) -> int:
        return sequence.num_tokens - 1

    def blocks_due(self) -> abc.Mapping[Sequence, int]:
        return dict.fromkeys(self._due(0), 1)

    def grow(self, ahead: int, blocks: BlockManager) -> BlockGrowth:
        due = self._due(ahead)
        if not due:
            return _NO_GROWTH
        return _growth(ahead, due, blocks.pool.take(len(due)))

    def run(self, num_steps: int, blocks: BlockManager) -> list[BlockGrowth]:
        now, size, boundary = self.clock.step, self._block_size, self._boundary
        steps = self._growth_steps(num_steps)
        if not steps:
            return []
        due = [boundary[(now + ahead) % size] for ahead in steps]
        taken = blocks.pool.take_each([len(each) for each in due])
        return [_growth(ahead, due[number], taken[number]) for number, ahead in enumerate(steps)]

    def affordable_steps(self, limit: int, num_free_blocks: int) -> int:
        if num_free_blocks >= (limit // self._block_size + 1) * len(self.sequences):
            return limit
        for ahead in self._growth_steps(limit):
            num_free_blocks -= len(self._due(ahead))
            if num_free_blocks < 0:
                return ahead
        return limit

    def filling(self, ahead: int) -> abc.Iterable[tuple[Sequence, int]]:
        findable = self.findable
        return [(s, s.num_tokens + ahead) for s in self._due(ahead + 1) if s in findable]

    def steps_until(self, sequence: Sequence, num_tokens: int) -> int:
        return num_tokens - sequence.num_tokens

    def advance(self, num_steps: int, verified: Verified | None = None) -> list[Sequence]:
        self.clock.step += num_steps
        growth = num_steps * len(self.sequences)
        self._num_squared_context_tokens += num_steps * (2 * self._num_context_tokens + growth)
        self._num_context_tokens += growth
        self.fresh.clear()
        ending = self._finish.get(self.clock.step)
        if not ending:
            return []
        self._finish[self.clock.step] = []
        for sequence in ending:
            self._take_out(sequence)
        return ending

    def _growth_steps(self, num_steps: int) -> list[int]:
        """Those of the steps 1 to num_steps - 1 from now for which blocks are due."""
        size, now, boundary = self._block_size, self.clock.step, self._boundary
        if size == NEVER:
            return []
        if num_steps <= 2 * len(boundary):
            return [ahead for ahead in range(1, num_steps) if (now + ahead) % size in boundary]
        return sorted([s for phase in boundary for s in range((phase - now - 1) % size + 1, num_steps, size)])

    def _due(self, ahead: int) -> list[Sequence]:
        """Sequences that need a new block `ahead` decode steps from now."""
        return self._boundary.get((self.clock.step + ahead) % self._block_size, _NOBODY)

    def check_integrity(self) -> None:
        """Prove that the buckets and sums say what the sequences say; raises AssertionError."""
        assert self._num_context_tokens == sum(s.num_tokens for s in self.sequences)
        assert self._num_squared_context_tokens == sum(s.num_tokens**2 for s in self.sequences)
        assert self.findable.keys() <= {s for s in self.sequences if s.has_content}
        assert sum(map(len, self._boundary.values())) == sum(map(len, self._finish.values())) == len(self.sequences)
        assert self.fresh.keys() <= self.sequences.keys()
        for sequence in self.sequences:
            begun = self.clock.step - sequence.num_tokens
            end = begun + sequence.end_length
            assert sequence in self._boundary[(begun + 1) % self._block_size] and sequence in self._finish[end]
            assert end > self.clock.step
            assert sequence.num_computed_tokens == sequence.num_tokens - 1


def _growth(ahead: int, due: list[Sequence], taken: list[int]) -> BlockGrowth:
    """Append `taken` to the block tables of those that are due, one to each."""
    ids: list[Any] = taken  # a compiled core would make new objects of numbers
    for number, sequence in enumerate(due):
        table: list[Any] = sequence.block_table
        table.append(ids[number])
    return BlockGrowth(ahead, due[:], taken)


def uniform_decodes(block_size: int, longest: int) -> Decodes:
    """Decodes that need not know how long a sequence may become."""
    return UniformDecodes(block_size)
