"""Piecewise-linear interpolation through measured points, and its continuation beyond them.

Between measured points times are interpolated linearly. Below the first point the time of that point holds: kernels
have a least time. Beyond the last point the time grows in proportion to the work of the operator, as on a roofline with
the rate of the last point.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Work = Callable[[float, float], float]
"""The work of an operator at (row, x), in any unit; linear in x."""


class Curve:
    """Time over one variable.

    A scalar and an array of the same points give bit-for-bit the same times.

    Args:
        xs: where it was measured, ascending.
        ys: the times there.
        tail: slope beyond the last point.

    Attributes:
        end: the last measured point.
    """

    __slots__ = ("_array", "_begin", "_first", "_slope", "_stop", "end", "slopes", "xs", "ys")

    def __init__(self, xs: Sequence[float], ys: Sequence[float], tail: float) -> None:
        self.xs = [float(x) for x in xs]
        self.ys = [float(y) for y in ys]
        if len(self.xs) != len(self.ys):
            raise ValueError(f"{len(self.xs)} points and {len(self.ys)} times")
        self.slopes: list[float] = []
        last_x, last_y = self.xs[0], self.ys[0]
        for i in range(1, len(self.xs)):  # compiled, pairs would be objects
            x, y = self.xs[i], self.ys[i]
            self.slopes.append((y - last_y) / (x - last_x))
            last_x, last_y = x, y
        self.slopes.append(float(tail))
        self.end = last_x
        self._array: tuple[NDArray[np.float64], ...] | None = None
        self._begin = self._stop = math.inf  # of the piece that was asked for last, since contexts grow slowly
        self._first = self._slope = 0.0  # its time at its begin, and its slope

    def __call__(self, x: float) -> float:
        if self._begin <= x < self._stop:
            return self._first + (x - self._begin) * self._slope
        xs = self.xs
        if x <= xs[0]:
            return self.ys[0]
        i = bisect_right(xs, x) - 1
        self._begin, self._stop = xs[i], xs[i + 1] if i + 1 < len(xs) else math.inf
        self._first, self._slope = self.ys[i], self.slopes[i]
        return self._first + (x - self._begin) * self._slope

    def many(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The times at all of `x`."""
        if self._array is None:
            self._array = np.array(self.xs), np.array(self.ys), np.array(self.slopes)
        xs, ys, slopes = self._array
        x = np.maximum(x, xs[0])
        i = xs.searchsorted(x, side="right") - 1
        return ys[i] + (x - xs[i]) * slopes[i]

    def next_point(self, x: float) -> float:
        """The time at the next measured point: an operator that computes in tiles rounds its size up."""
        i = bisect_left(self.xs, x)
        return self.ys[i] if i < len(self.ys) else self(x)

    def scaled(self, factor: float) -> Curve:
        return Curve(self.xs, [y * factor for y in self.ys], self.slopes[-1] * factor)


def flat(xs: Sequence[float], ys: Sequence[float]) -> Curve:
    """A curve that keeps its last value."""
    return Curve(xs, ys, 0.0)


def proportional(xs: Sequence[float], ys: Sequence[float]) -> Curve:
    """A curve whose time grows in proportion beyond the last point."""
    return Curve(xs, ys, ys[-1] / xs[-1])


class Surface:
    """Time over two variables: a curve for each measured row. The rows need not be measured at the same points.

    Args:
        rows: points and times of each row.
        work: beyond the grid the time grows in proportion to it; if None, the last time holds.
    """

    def __init__(self, rows: Mapping[float, tuple[Sequence[float], Sequence[float]]], work: Work | None) -> None:
        self.rows = sorted(rows)
        self._work = work
        self._points = {row: rows[row] for row in self.rows}
        self._curves: dict[float, Curve] = {}

    @property
    def end(self) -> float:
        return self.rows[-1]

    def at(self, row: float) -> Curve:
        """The curve of a row; if it was not measured, interpolated between those around it."""
        curve = self._curves.get(row)
        if curve is None:
            curve = self._curves[row] = self._make(row)
        return curve

    def first(self, row: float) -> float:
        """The time of a row at its first measured point and below it; without the curve of a row between two others,
        which takes as long to make as a hundred times."""
        low, high, weight = self.bracket(row)
        if low == high or row in self._points:
            return self.at(row).ys[0]
        below, above = self.at(low).ys[0], self.at(high).ys[0]
        return below + weight * (above - below)

    def bracket(self, row: float) -> tuple[float, float, float]:
        """The measured rows around `row` and the weight of the second; the nearest one twice outside the grid."""
        rows = self.rows
        if row <= rows[0] or row >= rows[-1]:
            nearest = rows[0] if row <= rows[0] else rows[-1]
            return nearest, nearest, 0.0
        i = bisect_right(rows, row) - 1
        return rows[i], rows[i + 1], (row - rows[i]) / (rows[i + 1] - rows[i])

    def _make(self, row: float) -> Curve:
        if row in self._points:
            xs, ys = self._points[row]
            return Curve(xs, ys, self._tail(row, xs[-1], ys[-1]))
        low, high, weight = self.bracket(row)
        if low == high:
            curve = self.at(low)
            if row < low or self._work is None:
                return curve
            ys = [y * self._work(row, x) / self._work(low, x) for x, y in zip(curve.xs, curve.ys, strict=True)]
            return Curve(curve.xs, ys, self._tail(row, curve.xs[-1], ys[-1]))
        below, above = self.at(low), self.at(high)
        if below.xs == above.xs:  # as most often; to ask both for each time would take several times as long
            xs, lower, upper = below.xs, below.ys, above.ys
        else:
            xs = sorted({*below.xs, *above.xs})
            lower, upper = [below(x) for x in xs], [above(x) for x in xs]
        ys = [low_y + weight * (upper[i] - low_y) for i, low_y in enumerate(lower)]
        curve = Curve(xs, ys, below.slopes[-1] + weight * (above.slopes[-1] - below.slopes[-1]))
        curve.end = min(below.end, above.end)  # from there on one of the two is carried on
        return curve

    def _tail(self, row: float, x: float, y: float) -> float:
        """Slope beyond the last point `x`, `y` of a row: y times the relative growth of the work per unit of x."""
        if self._work is None:
            return 0.0
        work = self._work(row, x)
        return y * (self._work(row, x + 1) - work) / work
