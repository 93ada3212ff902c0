"""The interface of cost models: how long a step takes, in whole nanoseconds.

Whole numbers are what makes a compressed simulation equal to a stepped one to the last bit: their sums do not depend
on the order of the additions, so a run of steps may be advanced at once. Each step's time is rounded once, to the
nearest nanosecond, ties to even.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.plan import StepPlan


class CostModel(Protocol):
    def step_ns(self, plan: StepPlan) -> int:
        """Duration of the (first) step of `plan` in ns, at least 1."""

    def decode_ns(self, plan: StepPlan, num_steps: int) -> NDArray[np.int64]:
        """Durations in ns, int64[num_steps], of a run of decode steps.

        Step k has `plan.num_context_tokens + k * plan.num_decodes` context tokens. Entry k equals, bit for bit, what
        `step_ns` returns for that step alone.
        """
