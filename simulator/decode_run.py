"""Decode steps that follow one another without a decision: what each takes, and when it ends.

Most runs are of a few steps, which are faster as a list of numbers than as an array.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Durations: TypeAlias = list[int] | NDArray[np.int64]
"""Of consecutive decode steps, in ns: int64[n], or a list for a few."""


class Run:
    """Consecutive decode steps; times in ns.

    Attributes:
        durations: of each.
        ends: of each, counted from the start of the first.
        num_steps: how many there are, at least one.
        end: of the last.
    """

    __slots__ = ("durations", "ends", "num_steps", "end")

    def __init__(self, durations: Durations) -> None:
        self.durations = durations
        self.num_steps = len(durations)
        self.ends: Durations
        if isinstance(durations, list):
            end = 0
            ends: list[int] = []
            for duration in durations:
                end += duration
                ends.append(end)
            self.ends, self.end = ends, end
        else:
            self.ends = np.add.accumulate(durations)
            self.end = self.ends.item(-1)

    @property
    def first_ns(self) -> int:
        """What the first step takes."""
        durations = self.durations
        return durations[0] if isinstance(durations, list) else durations.item(0)

    @property
    def last_ns(self) -> int:
        """What the last step takes."""
        durations = self.durations
        return durations[-1] if isinstance(durations, list) else durations.item(-1)

    def num_before(self, time: int) -> int:
        """How many steps end before `time`, counted from the start of the first."""
        ends = self.ends
        return bisect_left(ends, time) if isinstance(ends, list) else int(ends.searchsorted(time))

    def num_up_to(self, time: int) -> int:
        """How many steps end before `time` or then."""
        ends = self.ends
        return bisect_right(ends, time) if isinstance(ends, list) else int(ends.searchsorted(time, "right"))

    def first(self, num_steps: int) -> Run:
        """The first `num_steps` steps of the run."""
        return Run(self.durations[:num_steps])

    def followed_by(self, later: Durations) -> Run:
        """The run with the steps that follow it."""
        durations = self.durations
        if isinstance(durations, list) and isinstance(later, list):
            return Run(durations + later)
        return Run(np.concatenate((durations, later)))
