"""vLLM's two queues: who is passed over, because what it needs is not there yet, comes before those who wait."""

from __future__ import annotations

import heapq
from typing import Any

from engine.core.admission.waiting_queue import QueueOrder, WaitingQueue, by_arrival
from engine.core.sequence import Sequence


class SkippingQueue(WaitingQueue):
    """Whoever is passed over keeps its place; whoever is preempted goes to the front of those who wait. With priorities
    these alone say who comes first. The head is asked about in every step.

    Args:
        holders_first: as of `OffloadingRules`.
    """

    def __init__(self, order: QueueOrder, *, holders_first: bool) -> None:
        super().__init__(order)
        self._is_by_arrival = order is by_arrival
        self._holders_first = holders_first
        self._skipped: list[Sequence] = []
        self._front = 0

    def hold_head(self, *args: Any, **kwargs: Any) -> None:
        """The answer may change with every step."""

    def push(self, sequence: Sequence) -> None:
        self._put(1, sequence, at_front=sequence.num_preemptions > 0)

    def skip(self) -> None:
        """Pass over the head until the step is planned."""
        self._skipped.append(self.pop())

    def end_pass(self) -> None:
        """Who was passed over is back in the queue."""
        for sequence in reversed(self._skipped):
            is_first = bool(sequence.block_table) if self._holders_first else self._is_by_arrival
            self._put(1 - is_first, sequence, at_front=True)
        self._skipped.clear()

    def _put(self, rank: int, sequence: Sequence, *, at_front: bool) -> None:
        self._num_pushed += 1
        self._front -= at_front
        place = self._front if at_front else self._num_pushed
        key = (rank, place if self._is_by_arrival else self._order(sequence))
        heapq.heappush(self._heap, (key, sequence.request.order, self._num_pushed, sequence))
