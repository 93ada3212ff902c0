"""Log-spaced grids whose intervals are halved as long as there is time.

A grid is the product of its axes, without the points that do not fit. Halving puts a value midway on the logarithmic
scale between all neighbours of all axes: tables stay rectangular except for points that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.profiler.samples import Point

_CLOSEST = 1.2  # neighbours on an axis are at least this factor apart


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

    def halve(self) -> None:
        """Halve all intervals whose ends are not too close."""
        for i, axis in enumerate(self.axes):
            pairs = zip(axis, axis[1:], strict=False)
            middles = {_middle(low, high) for low, high in pairs if high >= _CLOSEST * _CLOSEST * low}
            self.axes[i] = sorted({*axis, *middles})


def _middle(low: int, high: int) -> int:
    return round((low * high) ** 0.5) if low else max(1, high // 4)
