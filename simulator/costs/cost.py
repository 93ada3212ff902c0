"""The interface of cost models: how long a step takes, in whole nanoseconds.

Whole numbers are what makes a compressed simulation equal to a stepped one to the last bit: the sum of whole numbers
does not depend on the order of the additions, so a run of steps may be advanced at once. The time of each step is
rounded once, to the nearest nanosecond, ties to even.
"""

from __future__ import annotations

from typing import Final, Protocol

from engine.core.work import StepWork
from simulator.decode_run import Durations
from simulator.nanoseconds import nearest_ns

FEW_STEPS: Final = 16  # up to this many decode steps are faster one by one, in a list, than as arrays


def step_time_ns(time: float) -> int:
    """The whole number nearest to the time of a step, at least 1."""
    return max(1, nearest_ns(time))


class CostModel(Protocol):
    def step_ns(self, work: StepWork) -> int:
        """Duration of a step in ns, at least 1."""

    def decode_ns(self, work: StepWork, num_steps: int) -> Durations:
        """Durations of `num_steps` steps: the decode step `work` and those that follow it.

        Entry k equals, bit for bit, `step_ns(work.after(k))`; entry 0 also includes what is copied before the step.
        """
