"""A waiting queue that a policy sorts itself: who comes, or comes back, goes to its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.core.admission.waiting_queue import WaitingQueue, by_arrival
from engine.core.sequence import Sequence


class ListedQueue(WaitingQueue):
    """Sequences in a list.

    Attributes:
        sequences: the list, which the policy may sort.
    """

    def __init__(self) -> None:
        super().__init__(by_arrival)
        self.sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences)

    @property
    def head(self) -> Sequence:
        return self.sequences[0]

    @property
    def candidate(self) -> Sequence | None:
        return self.sequences[0] if self.sequences else None

    def push(self, sequence: Sequence) -> None:
        self.sequences.append(sequence)

    def pop(self) -> Sequence:
        return self.sequences.pop(0)

    def first(self, count: int) -> list[Sequence]:
        return self.sequences[:count]

    def remove(self, sequence: Sequence) -> None:
        self.sequences.remove(sequence)

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        assert len({*self.sequences}) == len(self.sequences), "a sequence waits twice"
