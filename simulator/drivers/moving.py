"""A mean that follows what changes slowly."""

from __future__ import annotations

_WEIGHT = 1 / 8  # of the last value
_LARGEST = 2.0  # times the mean, as which a value that is larger counts: one delay does not mean that more will come


class MovingMean:
    """Of values above 0; `mean` is 0 before the first."""

    def __init__(self) -> None:
        self.mean = 0.0

    def add(self, value: float) -> None:
        if not self.mean:
            self.mean = value
        self.mean += _WEIGHT * (min(value, _LARGEST * self.mean) - self.mean)
