"""Decoding sequences that gain a varying number of tokens per step, as with speculative decoding.

Every step verifies `num_drafts` drafted tokens of each sequence, so it gains 1 to 1 + num_drafts tokens, and its blocks
must have room for all of them. How many come with each step is known when a sequence joins: `trajectory` gives the
tokens after k steps, cum[k]. With `t` the decode clock and `L` the length at that time,

    it ends when the clock reaches      t + the first k with L + cum[k] >= end_length
    the context of its step k is        L + cum[k]
    before step k it needs room for     min(L + cum[k] + num_drafts, end_length) tokens

The sums of the contexts and of their squares are kept for every step to come: joining adds a slice, leaving takes the
rest of it back. So a step costs nothing per sequence here either.
"""

from __future__ import annotations

import heapq
from collections import abc
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.core.clock import DecodeClock
from engine.core.decodes.interface import can_be_found
from engine.core.kv.block_manager import BlockManager
from engine.core.plan import BlockGrowth
from engine.core.sequence import Sequence
from engine.core.work import ChunkWork, StepWork

Trajectory = abc.Callable[[Sequence], NDArray[np.int64]]
"""Tokens that a sequence gains with its next 0, 1, 2, ... decode steps: int64[k], from 0 on, strictly ascending, up to
at least what it has left to generate."""

_FIRST_ROOM = 1024  # steps
_NOTHING_DUE: dict[Sequence, int] = {}


class _Position:
    """The clock of one sequence: the tokens that it has gained since it joined."""

    __slots__ = ("clock", "joined", "gained")

    def __init__(self, clock: DecodeClock, gained: NDArray[np.int64]) -> None:
        self.clock = clock
        self.joined = clock.step
        self.gained = gained

    @property
    def step(self) -> int:
        return int(self.gained[self.clock.step - self.joined])


class _Entry(NamedTuple):
    """What is kept of a sequence; contexts int64[steps], one for each step until it ends."""

    position: _Position
    contexts: NDArray[np.int64]
    growth_steps: list[int]  # clock values

    @property
    def end(self) -> int:
        """The clock value at which the sequence ends."""
        return self.position.joined + len(self.contexts)


class RaggedDecodes:
    """Sequences that decode up to 1 + num_drafts tokens per step, in the order they joined."""

    def __init__(self, block_size: int, num_drafts: int, trajectory: Trajectory) -> None:
        self.clock = DecodeClock()
        self.sequences: dict[Sequence, None] = {}
        self.fresh: dict[Sequence, None] = {}
        self.findable: dict[Sequence, None] = {}
        self.tokens_per_decode = 1 + num_drafts
        self._block_size = block_size
        self._num_drafts = num_drafts
        self._trajectory = trajectory
        self._entries: dict[Sequence, _Entry] = {}
        self._growth: dict[int, dict[Sequence, int]] = {}  # clock value -> blocks that each sequence needs then
        self._grown = -1  # clock value up to which these blocks were taken
        self._finish: dict[int, dict[Sequence, None]] = {}
        self._finish_steps: list[int] = []  # heap of the keys of _finish
        self._first_step = 0  # clock value of the first column of _sums
        self._sums = np.zeros((2, _FIRST_ROOM), np.int64)  # S1 and S2 of each step

    def join(self, sequence: Sequence) -> None:
        length, left = sequence.num_tokens, sequence.end_length - sequence.num_tokens
        gained = np.minimum(self._trajectory(sequence), left)
        num_steps = int(gained.searchsorted(left))
        assert num_steps < len(gained), "the trajectory ends before the sequence does"
        position = _Position(self.clock, gained)
        contexts = length + gained[:num_steps]
        sequence.start_decoding(position)
        self.sequences[sequence] = None
        self.fresh[sequence] = None
        if can_be_found(sequence):
            self.findable[sequence] = None
        growth = self._plan_growth(sequence, contexts)
        entry = self._entries[sequence] = _Entry(position, contexts, [*growth])
        for step, count in growth.items():
            self._growth.setdefault(step, {})[sequence] = count
        if entry.end not in self._finish:
            self._finish[entry.end] = {}
            heapq.heappush(self._finish_steps, entry.end)
        self._finish[entry.end][sequence] = None
        self._add_to_sums(entry, sign=1)

    def remove(self, sequence: Sequence) -> None:
        entry = self._entries.pop(sequence)
        del self.sequences[sequence]
        self.fresh.pop(sequence, None)
        self.findable.pop(sequence, None)
        for step in entry.growth_steps:
            if step >= self.clock.step and step in self._growth:
                self._growth[step].pop(sequence, None)
        del self._finish[entry.end][sequence]
        self._add_to_sums(entry, sign=-1)

    def next_event(self) -> int:
        while not self._finish[self._finish_steps[0]]:
            del self._finish[heapq.heappop(self._finish_steps)]
        return self._finish_steps[0] - self.clock.step

    def work(self, chunks: abc.Sequence[ChunkWork], num_copied_blocks: int) -> StepWork:
        if not self.sequences:
            return StepWork(chunks, 0, 0, 0, num_copied_blocks, self.tokens_per_decode)
        now = self.clock.step - self._first_step
        contexts, squared = self._sums[:, now : now + self.next_event()].copy()
        return StepWork(
            chunks, len(self.sequences), int(contexts[0]), int(squared[0]), num_copied_blocks, self.tokens_per_decode,
            later_contexts=contexts, later_squared_contexts=squared,
        )  # fmt: skip

    def num_blocks_due(self, ahead: int = 0) -> int:
        return sum(self._due(ahead).values())

    def blocks_due(self) -> abc.Mapping[Sequence, int]:
        return self._due(0)

    def grow(self, ahead: int, blocks: BlockManager) -> BlockGrowth:
        if not self.sequences:
            return BlockGrowth(ahead, [], [])
        owners = []
        for sequence, count in self._due(ahead).items():
            owners += [sequence] * count
        self._grown = self.clock.step + ahead
        taken = blocks.take(len(owners))
        for sequence, block in zip(owners, taken, strict=True):
            sequence.block_table.append(block)
        return BlockGrowth(ahead, owners, taken)

    def run(self, num_steps: int, blocks: BlockManager) -> list[BlockGrowth]:
        return [self.grow(ahead, blocks) for ahead in range(1, num_steps) if self.num_blocks_due(ahead)]

    def affordable_steps(self, limit: int, num_free_blocks: int) -> int:
        for ahead in range(1, limit):
            num_free_blocks -= self.num_blocks_due(ahead)
            if num_free_blocks < 0:
                return ahead
        return limit

    def filling(self, ahead: int) -> abc.Iterable[tuple[Sequence, int]]:
        """Looked at when a sequence needs its next block, or would if it went on: with drafts that is before the last
        one is full, so a block may be registered one block later than it could be."""
        findable = self.findable
        ending = self._finish.get(self.clock.step + ahead + 1, ())
        return [(s, self._length(s, ahead)) for s in (*self._due(ahead + 1), *ending) if s in findable]

    def steps_until(self, sequence: Sequence, num_tokens: int) -> int:
        return -(-(num_tokens - sequence.num_tokens) // self.tokens_per_decode)

    def advance(self, num_steps: int) -> list[Sequence]:
        for step in range(self.clock.step, self.clock.step + num_steps):
            self._growth.pop(step, None)
        self.clock.step += num_steps
        self.fresh.clear()
        finished = list(self._finish.get(self.clock.step, ()))
        for sequence in finished:
            self.remove(sequence)
        return finished

    def _due(self, ahead: int) -> dict[Sequence, int]:
        """Sequences, with the number of blocks, that need them `ahead` decode steps from now."""
        return self._growth.get(self.clock.step + ahead, _NOTHING_DUE)

    def _length(self, sequence: Sequence, ahead: int) -> int:
        """Tokens of a sequence `ahead` steps from now; before it joined it had one less."""
        position = self._entries[sequence].position
        index = min(self.clock.step + ahead - position.joined, len(position.gained) - 1)
        if index < 0:
            return sequence.num_tokens - 1
        return sequence.num_tokens - position.step + int(position.gained[index])

    def _plan_growth(self, sequence: Sequence, contexts: NDArray[np.int64]) -> dict[int, int]:
        """Clock values at which the sequence needs more blocks, and how many."""
        room = np.minimum(contexts + self._num_drafts, sequence.end_length)
        num_blocks = -(-room // self._block_size)
        num_blocks = np.maximum(num_blocks, len(sequence.block_table))
        more = np.diff(num_blocks, prepend=len(sequence.block_table))
        steps = np.flatnonzero(more > 0)
        return dict(zip((self.clock.step + steps).tolist(), more[steps].tolist(), strict=True))

    def _add_to_sums(self, entry: _Entry, sign: int) -> None:
        """Add the contexts of an entry to the sums of all steps from now on, or take them away."""
        now = self.clock.step
        contexts = entry.contexts[now - entry.position.joined :]
        if not len(contexts):
            return
        self._make_room(now + len(contexts))
        start = now - self._first_step
        self._sums[0, start : start + len(contexts)] += sign * contexts
        self._sums[1, start : start + len(contexts)] += sign * contexts**2

    def _make_room(self, end: int) -> None:
        """Let the sums reach to the clock value `end`; steps that have passed are dropped."""
        if end - self._first_step <= self._sums.shape[1]:
            return
        kept = self._sums[:, self.clock.step - self._first_step :]
        self._sums = np.zeros((2, 2 * max(end - self.clock.step, kept.shape[1])), np.int64)
        self._sums[:, : kept.shape[1]] = kept
        self._first_step = self.clock.step

    def check_integrity(self) -> None:
        """Prove that timers and sums say what the sequences say; raises AssertionError."""
        now = self.clock.step
        work = self.work((), 0)
        assert work.num_context_tokens == sum(s.num_tokens for s in self.sequences)
        assert work.num_squared_context_tokens == sum(s.num_tokens**2 for s in self.sequences)
        assert self.sequences.keys() == self._entries.keys()
        assert self.fresh.keys() <= self.sequences.keys()
        for sequence, entry in self._entries.items():
            assert sequence in self._finish[entry.end] and entry.end > now
            assert sequence.num_computed_tokens == sequence.num_tokens - 1
            steps = [step for step in entry.growth_steps if step > self._grown]
            due = sum(self._growth[step][sequence] for step in steps)
            room = min(int(entry.contexts[-1]) + self._num_drafts, sequence.end_length)
            assert (len(sequence.block_table) + due) * self._block_size >= room, "a block timer is lost"
