"""The interface of cost models, which say how long a step takes in whole nanoseconds, and what they share.

Whole numbers are what makes a compressed simulation equal to a stepped one to the last bit: the sum of whole numbers
does not depend on the order of the additions, so a run of steps may be advanced at once. The time of each step is
rounded once, to the nearest nanosecond, ties to even.
"""

from __future__ import annotations

from array import array
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.core.work import StepWork

FEW_STEPS = 16  # up to this many decode steps are faster one by one than as arrays

# From 2^52 on, floats are whole numbers: a sum with this is rounded to one, as all sums are, to the nearest.
_WHOLE: Final = 6755399441055744.0  # 1.5 * 2^52


def nearest_ns(time: float) -> int:
    """A time below 2^51 ns, which is 26 days, as a whole number: what `round` says, at a tenth of its price where this
    is compiled. Of longer times, which no step takes, about as much."""
    return int(time + _WHOLE - _WHOLE)


def step_time_ns(time: float) -> int:
    """The whole number nearest to the time of a step, at least 1."""
    return max(1, nearest_ns(time))


class CostModel(Protocol):
    def step_ns(self, work: StepWork) -> int:
        """Duration of a step in ns, at least 1."""

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        """Durations in ns, int64[num_steps], of the decode step `work` and of those that follow it.

        Entry k equals, bit for bit, `step_ns(work.after(k))`; entry 0 also includes what is copied before the step.
        """


class KnownTimes:
    """Times in ns that were computed before, by the number of tokens or sequences; 0 where none is known.

    They are in an array: in a dict they would be objects of their own, which take the places of requests that have
    ended, so that the memory of hundreds of thousands of requests could not be given back.
    """

    def __init__(self) -> None:
        self._times = array("d")

    def get(self, count: int) -> float:
        times = self._times
        return times[count] if count < len(times) else 0.0

    def keep(self, count: int, time: float) -> None:
        times = self._times
        if count >= len(times):
            times.frombytes(bytes(times.itemsize * (count + 1)))
        times[count] = time
