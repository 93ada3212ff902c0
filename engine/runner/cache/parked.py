"""Sequences of the real engine whose KV is on its way back to the device, and when it is there."""

from __future__ import annotations

from collections import abc, deque

from engine.core.kv.tiers.tier import DEVICE
from engine.core.plan import StepPlan
from engine.core.sequence import Sequence


class Parked:
    """Parked sequences by the plan whose copies they wait for; the copies of one plan end after those of earlier ones.

    Plans with such copies are numbered from 1 on. The numbers go on after `forget_all`, as the device may still copy.

    Attributes:
        number: of the last plan.
        awaited: the next plan must wait for all copies up to this number: it has their sequences, or the blocks of
            those that were aborted.
    """

    def __init__(self) -> None:
        self.number = 0
        self.awaited = 0
        self._plans: deque[tuple[int, list[Sequence]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._plans)

    @property
    def marks(self) -> tuple[int, int]:
        """`number` and `awaited`, as the inputs of a plan have them."""
        return self.number, self.awaited

    def add(self, plan: StepPlan) -> None:
        """Note whom a plan parks, if anybody."""
        if plan.parked:
            # Without copies of its own, a sequence waits for those that earlier plans began.
            self.number += any(t.target_tier == DEVICE != t.source_tier for t in plan.transfers)
            self._plans.append((self.number, list(plan.parked)))

    def await_first(self) -> None:
        """Let the next plan wait for the copies that end first."""
        self.awaited = self._plans[0][0]

    def take_landed(self, number: int) -> list[Sequence]:
        """Take out the sequences whose copies, all up to `number`, have ended."""
        landed: list[Sequence] = []
        while self._plans and self._plans[0][0] <= number:
            first, sequences = self._plans.popleft()
            self.awaited = max(self.awaited, first)
            landed += sequences
        return landed

    def hurry(self, sequences: abc.Iterable[Sequence]) -> None:
        """Let the next plan wait for the copies of aborted sequences: others may need their blocks."""
        aborted = set(sequences)
        numbers = [number for number, parked in self._plans if not aborted.isdisjoint(parked)]
        self.awaited = max([self.awaited, *numbers])

    def forget_all(self) -> None:
        self._plans.clear()
        self.awaited = self.number
