"""The interface of cost models: how long a step takes, in whole nanoseconds.

Whole numbers are what makes a compressed simulation equal to a stepped one to the last bit: their sums do not depend
on the order of the additions, so a run of steps may be advanced at once. Each step's time is rounded once, to the
nearest nanosecond, ties to even.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.core.plan import PrefillChunk, StepPlan
from engine.core.sequence import Sequence as Request


class CostModel(Protocol):
    prices_scattered: bool  # looks at `plan.num_scattered_tokens`, so that these must be counted

    def step_ns(self, plan: StepPlan) -> int:
        """Duration of the (first) step of `plan` in ns, at least 1."""

    def decode_ns(self, plan: StepPlan, num_steps: int) -> NDArray[np.int64]:
        """Durations in ns, int64[num_steps], of a run of decode steps.

        Step k has `k * plan.num_decodes` more context tokens, and more scattered ones, than the first. Entry k equals,
        bit for bit, what `step_ns` returns for that step alone.
        """


def plan_to_price(
    chunks: Sequence[tuple[int, int, bool]], num_decodes: int, num_context_tokens: int, num_squared_context_tokens: int
) -> StepPlan:
    """As much of a step plan as cost models look at; chunks are start, tokens and whether it is the prompt's last. The
    KV blocks of each sequence lie in one piece."""
    prompt = Request(0, 1, 1)
    return StepPlan(
        prefills=[PrefillChunk(prompt, *chunk) for chunk in chunks],
        decodes=[],
        num_decodes=num_decodes,
        num_context_tokens=num_context_tokens,
        num_squared_context_tokens=num_squared_context_tokens,
        num_scattered_tokens=0,
        fresh_decodes=[],
        admitted=[],
        preempted=[],
        copies=[],
        growth=[],
        horizon=1,
        num_steps=1,
        num_running=num_decodes + len(chunks),
        num_waiting=0,
        num_used_blocks=0,
    )
