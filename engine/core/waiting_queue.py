"""The queue of requests that wait for admission, and what is known about the one at its head."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from engine.core.sequence import Sequence


class WaitingQueue:
    """Sequences by priority, unless it is ignored, then in order of arrival.

    A preempted sequence keeps its place, which is before everyone who has not been admitted yet.

    Attributes:
        head_blocked: the pool has no room for the head until something is released, or until one of `suppliers` fills
            the block `awaited_block` that the head could then share; whoever does so resets it.
    """

    def __init__(self, *, ignores_priority: bool = False) -> None:
        self.head_blocked = False
        self._ignores_priority = ignores_priority
        self.awaited_block = 0
        self.suppliers: list[Sequence] = []
        self._heap: list[tuple[int, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, _, sequence in self._heap)

    @property
    def head(self) -> Sequence:
        return self._heap[0][2]

    def block_head(self, awaited_block: int, suppliers: list[Sequence]) -> None:
        """Note that the head does not fit, and who may change that without releasing anything."""
        self.head_blocked = True
        self.awaited_block, self.suppliers = awaited_block, suppliers

    def look_for_supply(self) -> None:
        """Unblock the head if a supplier has filled the awaited block."""
        if self.head_blocked and any(s.num_registered_blocks > self.awaited_block for s in self.suppliers):
            self.head_blocked = False

    def push(self, sequence: Sequence) -> None:
        priority = 0 if self._ignores_priority else sequence.priority
        heapq.heappush(self._heap, (priority, sequence.order, sequence))
        if self._heap[0][2] is sequence:
            self.head_blocked = False

    def pop(self) -> Sequence:
        return heapq.heappop(self._heap)[2]

    def remove(self, sequence: Sequence) -> None:
        self._heap = [entry for entry in self._heap if entry[2] is not sequence]
        heapq.heapify(self._heap)
        self.head_blocked = False
