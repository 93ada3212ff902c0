"""Log-spaced grids that are refined where linear interpolation between their points is worst.

A grid is the product of its axes, without the points that do not fit. Refining it adds one value to one axis, midway
on the logarithmic scale between two others, and so a whole line of points: tables stay rectangular except for points
that do not fit. The error of interpolation on a new line tells how much a further line on either side of it may help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.profiler.samples import Point

_CLOSEST = 1.2  # neighbours on an axis are at least this factor apart
_INHERITED = 0.4  # expected error of half an interval, as a share of the error measured at the interval's middle
_UNKNOWN = 1.0  # expected error of an interval that was never halved: more than any measured error

Value = Callable[[Point], float]


def log_spaced(first: int, last: int, factor: float, also: Sequence[int] = ()) -> list[int]:
    """Whole numbers from `first` >= 1 to `last`, both included, about `factor` apart; and those of `also` between."""
    values = {first, last, *(value for value in also if first < value < last)}
    value = float(first)
    while value * factor < last * 0.75:
        value *= factor
        values.add(round(value))
    return sorted(values)


class Grid:
    """The points of one family.

    Args:
        axes: the coarse grid, each axis ascending; values may be 0.
        fits: whether a combination of sizes can be measured.
    """

    def __init__(
        self, family: str, axes: Sequence[Sequence[int]], fits: Callable[[tuple[int, ...]], bool] = lambda _: True
    ) -> None:
        self.family = family
        self.axes = [list(axis) for axis in axes]
        self._fits = fits
        self._expected: dict[tuple[int, int, int], float] = {}

    def points(self) -> list[Point]:
        """All points, in order of their sizes."""
        combinations: list[tuple[int, ...]] = [()]
        for axis in self.axes:
            combinations = [(*sizes, value) for sizes in combinations for value in axis]
        return [Point(self.family, sizes) for sizes in combinations if self._fits(sizes)]

    def restore(self, points: Sequence[Point]) -> None:
        """Add the sizes of `points`, which an earlier session measured, to the axes."""
        for axis in range(len(self.axes)):
            self.axes[axis] = sorted({*self.axes[axis], *(point.sizes[axis] for point in points)})

    def worst(self) -> tuple[float, int, int, int] | None:
        """Expected error, axis and ends of the interval to halve next; None if no interval can be halved."""
        best = None
        for axis, values in enumerate(self.axes):
            for low, high in zip(values, values[1:], strict=False):
                if not low < _middle(low, high) < high or high < _CLOSEST * _CLOSEST * low:
                    continue
                error = self._expected.get((axis, low, high), _UNKNOWN)
                if best is None or error > best[0]:
                    best = (error, axis, low, high)
        return best

    def insert(self, axis: int, low: int, high: int) -> list[Point]:
        """Halve an interval; returns the points that are new."""
        middle = _middle(low, high)
        self.axes[axis] = sorted({*self.axes[axis], middle})
        return [point for point in self.points() if point.sizes[axis] == middle]

    def remove(self, axis: int, low: int, high: int) -> None:
        """Undo an `insert`."""
        self.axes[axis].remove(_middle(low, high))

    def learn(self, axis: int, low: int, high: int, value: Value) -> float:
        """Remember the error of interpolation on the new line between `low` and `high`; returns it."""
        middle = _middle(low, high)
        weight = (middle - low) / (high - low)
        errors = []
        for point in self.points():
            if point.sizes[axis] != middle:
                continue
            ends = [self._moved(point, axis, end) for end in (low, high)]
            if all(self._fits(end.sizes) for end in ends):
                first, last = map(value, ends)
                errors.append(abs(first + weight * (last - first) - value(point)) / value(point))
        error = sum(errors) / len(errors) if errors else 0.0
        for ends_ in ((low, middle), (middle, high)):
            self._expected[(axis, *ends_)] = _INHERITED * error
        return error

    def _moved(self, point: Point, axis: int, size: int) -> Point:
        sizes = list(point.sizes)
        sizes[axis] = size
        return Point(self.family, tuple(sizes))


def _middle(low: int, high: int) -> int:
    return round((low * high) ** 0.5) if low else max(1, high // 4)
