"""Decoding sequences that gain a varying number of tokens per step, as with speculative decoding.

Every step verifies `num_drafts` drafts of each sequence, beyond its end too but not beyond `longest` tokens, as vLLM
has it; so it gains 1 to 1 + num_drafts tokens, and its blocks must have room for all of them. How many come is known
when it joins: `trajectory` gives the tokens after k steps, cum[k]. With `t` the decode clock and `L` its length then,

    it ends when the clock reaches      t + the first k with L + cum[k] >= end_length
    the context of its step k is        L + cum[k]
    step k verifies                     min(num_drafts, longest - 1 - L - cum[k]) drafts
    before step k it needs room for     L + cum[k] + these drafts
    step k fills a block                if L + cum[k] reaches a multiple of block_size that L + cum[k - 1] did not

A block can be found only when all tokens in it are verified. What step k is to gain decides nothing before it has run:
a real engine, which does not know it, makes the same plans (`unforeseen.py`). The sums over all sequences (contexts,
their squares, drafts, accepted drafts) are kept for every step to come, so that a step costs nothing per sequence.

Where steps are planned ahead, step k is planned before the drafts of step k - 1 are verified, as by vLLM's
`AsyncScheduler`. Then all of these count: before step k, L + cum[k - 1] + 1 + drafts[k - 1] stands for L + cum[k] in
the drafts that it verifies and the room that it needs. One token of step k - 1 is certain. If that is not the last one
but an accepted draft is, the sequence is *late*: it takes part in step k, too. If drafts[k] is negative, it *rests*.
"""

from __future__ import annotations

import heapq
from collections import abc

import numpy as np
from numpy.typing import NDArray

from engine.core.clock import DecodeClock
from engine.core.decodes.foreseen import Entry, Position, course, fill_steps, growth_steps
from engine.core.decodes.interface import Decodes, can_be_found
from engine.core.decodes.step_sums import StepSums
from engine.core.flight import Verified
from engine.core.kv.block_manager import BlockManager
from engine.core.plan import BlockGrowth, Drafts
from engine.core.sequence import Sequence
from engine.core.work import ChunkWork, StepWork

Trajectory = abc.Callable[[Sequence], NDArray[np.int64]]
"""Tokens that a sequence gains with its next 0, 1, 2, ... decode steps: int64[k], from 0 on, strictly ascending, up to
at least what it has left to generate."""

_NOTHING_DUE: dict[Sequence, int] = {}
_CONTEXTS, _SQUARES, _DRAFTED, _ACCEPTED = range(4)  # rows of the sums


class RaggedDecodes(Decodes):
    """Sequences that decode up to 1 + num_drafts tokens per step, in the order they joined."""

    def __init__(
        self, block_size: int, longest: int, num_drafts: int, trajectory: Trajectory, *, plans_ahead: bool = False
    ) -> None:
        self.clock = DecodeClock()
        super().__init__(tokens_per_decode=1 + num_drafts)
        self._block_size = block_size
        self._longest = longest
        self._num_drafts = num_drafts
        self._trajectory = trajectory
        self._plans_ahead = plans_ahead
        self._entries: dict[Sequence, Entry] = {}
        self._growth: dict[int, dict[Sequence, int]] = {}  # clock value -> blocks that each sequence needs then
        self._grown = -1  # clock value up to which these blocks were taken
        self._fills: dict[int, dict[Sequence, None]] = {}  # clock value -> findable sequences that fill a block then
        self._found: dict[Sequence, int] = {}  # of those that ended with the last step
        self._events: dict[int, dict[Sequence, None]] = {}
        self._event_steps: list[int] = []  # heap of the keys of _events
        self._sums = StepSums(4)

    def join(self, sequence: Sequence, *, is_padded: bool = False) -> None:
        now = self.clock.step
        first = sequence.num_tokens + (is_padded and self._plans_ahead) * self._num_drafts
        lengths, drafted = course(
            sequence, self._trajectory(sequence), first, self._num_drafts, self._longest, plans_ahead=self._plans_ahead
        )
        if not len(drafted):  # it is paused before it decodes
            self.resting[sequence], drafted = None, np.zeros(1, np.int64)
        position = Position(self.clock, lengths - lengths[0])
        parts: NDArray[np.int64] = np.empty((4, len(drafted)), np.int64)
        contexts = parts[_CONTEXTS] = lengths[: len(drafted)]
        parts[_SQUARES] = contexts**2
        parts[_DRAFTED] = drafted
        parts[_ACCEPTED] = 0
        parts[_ACCEPTED, : len(lengths) - 1] = np.diff(lengths) - 1
        sequence.start_decoding(position)
        self.sequences[sequence] = None
        self.fresh[sequence] = None
        fills: list[int] = []
        if can_be_found(sequence):
            self.findable[sequence] = None
            fills = fill_steps(now, self._block_size, contexts, sequence.num_registered_blocks)
        most: NDArray[np.int64] = np.append(first, contexts[:-1] + 1 + drafted[:-1]) if self._plans_ahead else contexts
        growth = growth_steps(now, self._block_size, len(sequence.block_table), most + drafted)
        entry = self._entries[sequence] = Entry(position, parts, [*growth], fills)
        for step, count in growth.items():
            self._growth.setdefault(step, {})[sequence] = count
        for step in fills:
            self._fills.setdefault(step, {})[sequence] = None
        for step in entry.events:
            if step not in self._events:
                self._events[step] = {}
                heapq.heappush(self._event_steps, step)
            self._events[step][sequence] = None
        self._sums.add(now, parts, sign=1)

    def remove(self, sequence: Sequence) -> None:
        entry = self._entries.pop(sequence)
        del self.sequences[sequence]
        for some in (self.fresh, self.findable, self.late, self.resting):
            some.pop(sequence, None)
        for step in entry.growth_steps:
            if step >= self.clock.step and step in self._growth:
                self._growth[step].pop(sequence, None)
        for step in entry.fill_steps:
            if step in self._fills:
                self._fills[step].pop(sequence, None)
        for step in entry.events:
            if step in self._events:
                self._events[step].pop(sequence, None)  # one that has come may be there again, of a decode that rests
        self._sums.add(self.clock.step, entry.parts[:, self.clock.step - entry.position.joined :], sign=-1)

    def next_event(self) -> int:
        while not self._events.get(self._event_steps[0]):
            self._events.pop(heapq.heappop(self._event_steps), None)
        return self._event_steps[0] - self.clock.step

    def work(self, chunks: abc.Sequence[ChunkWork], num_copied_blocks: int) -> StepWork:
        if not self.sequences:
            return StepWork(chunks, 0, 0, 0, num_copied_blocks, self.tokens_per_decode)
        contexts, squared, *_ = self._sums.at(self.clock.step, self.next_event())
        return StepWork(
            chunks, len(self.sequences), int(contexts[0]), int(squared[0]), num_copied_blocks, self.tokens_per_decode,
            later_contexts=contexts, later_squared_contexts=squared,
        )  # fmt: skip

    def num_blocks_due(self, ahead: int = 0) -> int:
        return sum(self._due(ahead).values())

    @property
    def num_step_tokens(self) -> int:
        if not self.sequences:
            return 0
        return len(self.sequences) + int(self._sums.at(self.clock.step, 1)[_DRAFTED, 0])

    def num_drafts_of(self, sequence: Sequence) -> int:
        entry = self._entries[sequence]
        return int(entry.parts[_DRAFTED, self.clock.step - entry.position.joined])

    def num_found(self, sequence: Sequence) -> int:
        if sequence in self._entries:
            return self._length(sequence, -1)
        return self._found.get(sequence, sequence.num_tokens - 1)

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
        return [(s, self._length(s, ahead)) for s in self._fills.get(self.clock.step + ahead, ())]

    def steps_until(self, sequence: Sequence, num_tokens: int) -> int:
        return -(-(num_tokens - sequence.num_tokens) // self.tokens_per_decode)

    def advance(self, num_steps: int, verified: Verified | None = None) -> list[Sequence]:
        now = self.clock.step
        for step in range(now, now + num_steps):
            self._growth.pop(step, None)
            self._fills.pop(step - 1, None)  # those of the last step may be asked for once more
        self.drafts = Drafts(*self._sums.at(now, num_steps)[_DRAFTED:])
        self.clock.step += num_steps
        self.fresh.clear()
        finished = []
        for sequence in self._events.pop(self.clock.step, {}):
            if self._entries[sequence].end > self.clock.step:
                self.late[sequence] = None
            elif sequence.num_tokens < sequence.end_length:
                self.resting[sequence] = None
            else:
                finished.append(sequence)
        self._found = {sequence: self._length(sequence, -1) for sequence in finished}
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
        return sequence.num_tokens - position.count + int(position.gained[index])

    def check_integrity(self) -> None:
        """Prove that timers and sums say what the sequences say; raises AssertionError."""
        now = self.clock.step
        work = self.work((), 0)
        assert work.num_context_tokens == sum(s.num_tokens for s in self.sequences)
        assert work.num_squared_context_tokens == sum(s.num_tokens**2 for s in self.sequences)
        assert self.sequences.keys() == self._entries.keys()
        assert self.fresh.keys() <= self.sequences.keys()
        for sequence, entry in self._entries.items():
            assert sequence in self._events[entry.end] and entry.end > now
            assert sequence.num_computed_tokens == sequence.num_tokens - 1
            due = sum(self._growth[step][sequence] for step in entry.growth_steps if step > self._grown)
            room = entry.parts[[_CONTEXTS, _DRAFTED], -1].sum()
            assert (len(sequence.block_table) + due) * self._block_size >= room, "a block timer is lost"
