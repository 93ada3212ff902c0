"""The decoding sequences, kept so that a decode step costs nothing per sequence.

All of them grow by one token per decode step, so what happens at which step is known when a sequence joins: with
`t` the decode clock and `L` its length at the time,

    it ends when the clock reaches          t + end_length - L
    it needs a new block at every step s    with s = t + 1 - L  (mod block_size)

because step s computes the token at position length - 1. Both are kept in buckets, and the contexts' sum and sum of
squares are running sums: k steps turn S1 into S1 + kn and S2 into S2 + 2k S1 + k^2 n for n sequences. How many of their
tokens lie in order in memory is one more, which only joining and leaving change: all when a sequence joins but those of
blocks that do not follow the one before them. The others lie scattered, also what is generated from then on, as the
blocks of a sequence alternate with those of others.
"""

from __future__ import annotations

import heapq
from operator import sub

from engine.core.sequence import DecodeClock, Sequence


class DecodeSet:
    """Sequences that decode, in the order they joined; how many tokens lie scattered is known if `counts_scattered`."""

    def __init__(self, block_size: int, *, counts_scattered: bool) -> None:
        self.clock = DecodeClock()
        self.sequences: dict[Sequence, int] = {}  # with how many of their tokens lie in order
        self.fresh: dict[Sequence, None] = {}  # joined since the last decode step
        self.num_context_tokens = 0
        self.num_squared_context_tokens = 0
        self.findable: dict[Sequence, None] = {}  # those that may yet fill blocks which others can find
        self._block_size = block_size
        self._counts_scattered = counts_scattered
        self._num_in_order_tokens = 0
        self._boundary: dict[int, dict[Sequence, list[int]]] = {}  # phase -> sequences and their block tables
        self._finish: dict[int, dict[Sequence, None]] = {}  # clock value -> sequences that end at it
        self._finish_steps: list[int] = []  # heap of the keys of _finish

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def num_scattered_tokens(self) -> int:
        """0 where they are not counted."""
        return self.num_context_tokens - self._num_in_order_tokens if self._counts_scattered else 0

    def join(self, sequence: Sequence) -> None:
        length = sequence.num_tokens
        sequence.start_decoding(self.clock)
        num_in_order = length
        if self._counts_scattered:
            num_in_order -= self._block_size * num_breaks(sequence.block_table)
        self.sequences[sequence] = num_in_order
        self._num_in_order_tokens += num_in_order
        self.fresh[sequence] = None
        self.num_context_tokens += length
        self.num_squared_context_tokens += length * length
        if sequence.has_content and (
            sequence.block_hashes is None or sequence.token_ids is not None
            or len(sequence.block_hashes) > sequence.num_registered_blocks
        ):  # fmt: skip
            self.findable[sequence] = None
        phase, end = self._keys(sequence, length)
        bucket = self._boundary.get(phase)
        if bucket is None:
            bucket = self._boundary[phase] = {}
        bucket[sequence] = sequence.block_table
        ending = self._finish.get(end)
        if ending is None:
            ending = self._finish[end] = {}
            heapq.heappush(self._finish_steps, end)
        ending[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        length = sequence.num_tokens
        phase, end = self._keys(sequence, length)
        self._num_in_order_tokens -= self.sequences.pop(sequence)
        self.fresh.pop(sequence, None)
        self.num_context_tokens -= length
        self.num_squared_context_tokens -= length * length
        self.findable.pop(sequence, None)
        bucket = self._boundary[phase]
        del bucket[sequence]
        if not bucket:
            del self._boundary[phase]
        del self._finish[end][sequence]

    def due(self, ahead: int = 0) -> dict[Sequence, list[int]]:
        """Sequences, with their block tables, that need a new block `ahead` decode steps from now."""
        return self._boundary.get((self.clock.step + ahead) % self._block_size, _NOTHING_DUE)

    def steps_until_finish(self) -> int:
        """Decode steps until the first sequence ends; there must be one."""
        while not self._finish[self._finish_steps[0]]:
            del self._finish[heapq.heappop(self._finish_steps)]
        return self._finish_steps[0] - self.clock.step

    def affordable_steps(self, limit: int, num_free_blocks: int) -> int:
        """How many steps, at most `limit`, the free blocks allow, those of the first step being taken already."""
        if num_free_blocks >= (limit // self._block_size + 1) * len(self.sequences):
            return limit
        for ahead in range(1, limit):
            num_free_blocks -= len(self.due(ahead))
            if num_free_blocks < 0:
                return ahead
        return limit

    def suppliers(self, waiting: Sequence, index: int) -> list[Sequence]:
        """Sequences that may come to fill the block that `waiting` has as number `index` among its known tokens."""
        hashes = waiting.block_hashes or []
        if index >= min(len(hashes), waiting.num_tokens // self._block_size):
            return []
        return [sequence for sequence in self.findable if _may_fill(sequence, hashes, index)]

    def advance(self, num_steps: int) -> list[Sequence]:
        """Let `num_steps` decode steps pass and take out the sequences that end with them."""
        self.clock.step += num_steps
        growth = num_steps * len(self.sequences)
        self.num_squared_context_tokens += num_steps * (2 * self.num_context_tokens + growth)
        self.num_context_tokens += growth
        self.fresh.clear()
        finished = list(self._finish.get(self.clock.step, ()))
        for sequence in finished:
            self.remove(sequence)
        return finished

    def _keys(self, sequence: Sequence, length: int) -> tuple[int, int]:
        """The boundary phase and the final clock value, which do not change while the sequence decodes."""
        offset = self.clock.step - length
        return (offset + 1) % self._block_size, offset + sequence.end_length

    def check_integrity(self) -> None:
        """Prove that the buckets and sums say what the sequences say; raises AssertionError."""
        assert self.num_context_tokens == sum(s.num_tokens for s in self.sequences)
        assert self.num_squared_context_tokens == sum(s.num_tokens**2 for s in self.sequences)
        assert self._num_in_order_tokens == sum(self.sequences.values())
        if self._counts_scattered:
            scattered = {s: s.num_tokens - in_order for s, in_order in self.sequences.items()}
            assert all(self._block_size * (num_breaks(s.block_table) - 1) <= n for s, n in scattered.items())
        assert self.findable.keys() <= {s for s in self.sequences if s.has_content}
        assert sum(map(len, self._boundary.values())) == sum(map(len, self._finish.values())) == len(self.sequences)
        assert self.fresh.keys() <= self.sequences.keys()
        for sequence in self.sequences:
            phase, end = self._keys(sequence, sequence.num_tokens)
            assert self._boundary[phase][sequence] is sequence.block_table
            assert sequence in self._finish[end] and end > self.clock.step
            assert sequence.num_computed_tokens == sequence.num_tokens - 1


def num_breaks(block_table: list[int]) -> int:
    """How many blocks of a table do not follow the one before them."""
    return max(0, len(block_table) - 1 - list(map(sub, block_table[1:], block_table)).count(1))


def _may_fill(sequence: Sequence, hashes: list[int], index: int) -> bool:
    """Whether `sequence` may come to hold the block `index` of `hashes`, as far as an engine can know.

    What it will generate a simulation may have been told, but plans as if it had not.
    """
    known, num_registered = sequence.block_hashes or [], sequence.num_registered_blocks
    can_fill = num_registered <= index and (sequence.token_ids is not None or index < len(known))
    return can_fill and known[:num_registered] == hashes[:num_registered]


_NOTHING_DUE: dict[Sequence, list[int]] = {}
