"""Sums over decoding sequences for every decode step to come: joining adds a slice, leaving takes its rest back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FIRST_ROOM = 1024  # steps


class StepSums:
    """`num_rows` sums of each step; a step is named by its clock value."""

    def __init__(self, num_rows: int) -> None:
        self._first = 0  # clock value of the first column
        self._sums: NDArray[np.int64] = np.zeros((num_rows, _FIRST_ROOM), np.int64)

    def at(self, step: int, num_steps: int) -> NDArray[np.int64]:
        """A copy of the sums of `num_steps` steps from `step` on, int64[num_rows, num_steps]."""
        start = step - self._first
        return self._sums[:, start : start + num_steps].copy()

    def add(self, now: int, parts: NDArray[np.int64], sign: int) -> None:
        """Add the parts of a sequence, int64[num_rows, steps], to the steps from `now` on, or take them away."""
        num_steps = parts.shape[1]
        if now + num_steps - self._first > self._sums.shape[1]:
            self._make_room(now, num_steps)
        start = now - self._first
        self._sums[:, start : start + num_steps] += sign * parts

    def _make_room(self, now: int, num_steps: int) -> None:
        """Let the sums reach `num_steps` steps beyond `now`; steps that have passed are dropped."""
        kept = self._sums[:, now - self._first :]
        self._sums = np.zeros((len(kept), 2 * max(num_steps, kept.shape[1])), np.int64)
        self._sums[:, : kept.shape[1]] = kept
        self._first = now
