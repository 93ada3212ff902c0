"""The queue of sequences that wait for admission, and what is known about the one at its head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, nsmallest
from typing import Any

from engine.core.admission.need import Need
from engine.core.sequence import Sequence

QueueOrder = Callable[[Sequence], Any]
"""The key of a sequence: the smallest is next, and among equals the one whose request was added first."""

Heap = list[tuple[Any, int, int, Sequence]]
"""Of key, order of the request, number of the push, and sequence."""


def by_arrival(sequence: Sequence) -> int:
    return 0


def by_priority(sequence: Sequence) -> int:
    return sequence.request.priority


class WaitingQueue:
    """Sequences in the order of a key that does not change while they wait.

    A preempted sequence keeps its place: among equals it comes before all whose requests were added after its own.
    A policy whose order changes with what is served has a queue of its own, as `fair` does.

    Attributes:
        holders: those that kept blocks when they were preempted.
        held: what the head needs, if a policy let it wait until something is released, or until one of `suppliers`
            fills the block `awaited_block` that the head could then share; whoever does so calls `unblock_head`.
        head_blocked: what it lacks is blocks, so that nobody needs to ask about it before that.
        coming: preempted ones whose last token is under way: nobody can compute it before it has come.
    """

    def __init__(self, order: QueueOrder) -> None:
        self.held: Need | None = None
        self.head_blocked = False
        self.awaited_block = 0
        self.suppliers: list[Sequence] = []
        self.holders: dict[Sequence, tuple[Any, int, int]] = {}  # with their places in the queue
        self.coming: set[Sequence] = set()
        self._order = order
        self._heap: Heap = []
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[-1] for entry in self._heap)

    @property
    def head(self) -> Sequence:
        """Who is next; somebody must wait."""
        return self._heap[0][-1]

    @property
    def candidate(self) -> Sequence | None:
        """The head, unless there is none or it is known not to fit, or waits for a token."""
        if self.head_blocked or not self._heap:
            return None
        return None if self._heap[0][-1] in self.coming else self._heap[0][-1]

    def hold_head(self, need: Need, awaited_block: int, suppliers: list[Sequence], *, is_blocked: bool) -> None:
        """Note that the head has to wait, and who may change that without releasing anything."""
        self.held, self.head_blocked = need, is_blocked
        self.awaited_block, self.suppliers = awaited_block, suppliers

    def unblock_head(self) -> None:
        """Something has changed, or another sequence is the head: a policy is asked about it."""
        self.held, self.head_blocked = None, False

    def look_for_supply(self) -> None:
        """Unblock the head if a supplier has filled the awaited block."""
        if self.head_blocked and any(s.num_registered_blocks > self.awaited_block for s in self.suppliers):
            self.unblock_head()

    def push(self, sequence: Sequence) -> None:
        self._num_pushed += 1
        entry = self._order(sequence), sequence.request.order, self._num_pushed, sequence
        heappush(self._heap, entry)
        if sequence.block_table:
            self.holders[sequence] = entry[:3]
        if self._heap[0][-1] is sequence:
            self.unblock_head()

    def pop(self) -> Sequence:
        sequence: Sequence = heappop(self._heap)[-1]
        if self.holders:
            self.holders.pop(sequence, None)
        self.held = None
        return sequence

    def last_holder(self, spared: Sequence | None = None) -> Sequence | None:
        """Of those that keep blocks, the one that is admitted last; never `spared`."""
        others = [(place, sequence) for sequence, place in self.holders.items() if sequence is not spared]
        return max(others)[1] if others else None

    def first(self, count: int) -> list[Sequence]:
        """The first `count` in order, or fewer if fewer wait."""
        return [entry[-1] for entry in nsmallest(count, self._heap)]

    def on_seat(self, sequence: Sequence) -> None:
        """A sequence got a seat: it left the queue, or was forked from one that runs."""

    def on_release(self, sequence: Sequence) -> None:
        """A sequence gave back its seat, and most often its blocks, so that the head may fit."""
        self.unblock_head()

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Prove, given all sequences with a seat, that the queue is in order; raises AssertionError."""
        heap = self._heap
        assert all(heap[(i - 1) // 2] < heap[i] for i in range(1, len(heap))), "the queue is out of order"

    def remove(self, sequence: Sequence) -> None:
        self._heap = [entry for entry in self._heap if entry[-1] is not sequence]
        heapify(self._heap)
        self.holders.pop(sequence, None)
        self.unblock_head()
