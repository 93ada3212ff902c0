"""A sequence whose tokens of all steps to come are known when it joins (`ragged.py`): its place, and what is due."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.core.clock import Clock, DecodeClock


class Position(Clock):
    """The clock of one sequence: the tokens that it has gained since it joined."""

    __slots__ = ("clock", "joined", "gained")

    def __init__(self, clock: DecodeClock, gained: NDArray[np.int64]) -> None:
        self.clock = clock
        self.joined = clock.step
        self.gained = gained

    @property
    def count(self) -> int:
        return int(self.gained[self.clock.step - self.joined])


class Entry(NamedTuple):
    """What is kept of a sequence; parts int64[4, steps], its part of the sums of each step until it ends or rests."""

    position: Position
    parts: NDArray[np.int64]
    growth_steps: list[int]  # clock values
    fill_steps: list[int]

    @property
    def events(self) -> set[int]:
        """The clock values after its last token and after its last step."""
        return {self.position.joined + len(self.position.gained) - 1, self.end}

    @property
    def end(self) -> int:
        """The clock value after the last step of the sequence."""
        return self.position.joined + self.parts.shape[1]
