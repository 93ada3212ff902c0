"""Measured times over one size: outliers dropped, and only as many points kept as interpolation needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_FALL = 0.05  # a kernel for larger sizes may be this much faster than the one for the size before
_THINNED = 0.005  # relative error that dropping a point may cause


class MeasuredCurve(NamedTuple):
    """Times in us over ascending sizes; between two sizes they are linear."""

    sizes: Floats
    times_us: Floats

    def at(self, sizes: Floats | float) -> Floats:
        """The times at `sizes`; beyond the last size they grow in proportion, below the first they stay."""
        asked = np.asarray(sizes, np.float64)
        times: Floats = np.interp(asked, self.sizes, self.times_us)
        return times * np.maximum(1.0, asked / self.sizes[-1])

    def slowed(self, factor: float) -> MeasuredCurve:
        """The curve whose times beyond that of the smallest size are `factor` times as long: arithmetic takes these."""
        return self._replace(times_us=self.times_us + (factor - 1) * np.maximum(self.times_us - self.times_us[0], 0.0))

    def thinned(self) -> MeasuredCurve:
        """Without the points that linear interpolation between the others reproduces to half a percent."""
        keep = np.zeros(len(self.sizes), bool)
        keep[[0, -1]] = True
        stack = [(0, len(self.sizes) - 1)]
        while stack:
            low, high = stack.pop()
            if high - low < 2:
                continue
            between = slice(low + 1, high)
            line = np.interp(self.sizes[between], self.sizes[[low, high]], self.times_us[[low, high]])
            errors = np.abs(line / self.times_us[between] - 1)
            worst = int(errors.argmax())
            if errors[worst] > _THINNED:
                middle = low + 1 + worst
                keep[middle] = True
                stack += [(low, middle), (middle, high)]
        return MeasuredCurve(self.sizes[keep], self.times_us[keep])


def measured_curve(rows: pd.DataFrame, size: str) -> tuple[MeasuredCurve, int]:
    """The curve of `rows` over the column `size`, and how many outliers were dropped.

    Of several measurements of one size (other kernels) the fastest counts, as an engine chooses it. Times must not fall
    as work grows: of the points that contradict each other by more than `_FALL`, as few as possible are dropped.
    """
    fastest = rows.groupby(size)["time_us"].min()
    sizes, times = fastest.index.to_numpy(np.float64), fastest.to_numpy(np.float64)
    kept = _longest_rise(times)
    return MeasuredCurve(sizes[kept], times[kept]), len(times) - len(kept)


def _longest_rise(times: Floats) -> list[int]:
    """Places of the longest subsequence in which no time is below (1 - _FALL) times the one before it."""
    best = np.ones(len(times), np.int64)
    before = np.full(len(times), -1)
    for i in range(1, len(times)):
        fits = np.flatnonzero(times[:i] * (1 - _FALL) <= times[i])
        if len(fits):
            j = int(fits[best[fits].argmax()])
            best[i], before[i] = best[j] + 1, j
    place, places = int(best.argmax()), []
    while place >= 0:
        places.append(place)
        place = int(before[place])
    return places[::-1]
