"""Decides what to measure next, so that any time budget gives a usable profile.

First every point of the coarse grids is visited once, smallest first. Then the intervals of grids are halved, as long
as the time suffices to visit all points a few times more. In the rest of the time all points are visited round after
round, each round in a new random order, so that a slow phase of a shared machine hits all of them alike. Points with
fewer visits come first, since an interrupted session may have left some behind. Whole steps are visited more often.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from simulator.profiler.grid import Grid
from simulator.profiler.samples import Clock, Point, Samples, Times

_SAVE_EVERY_S = 10.0
_LEAST_VISITS = 20  # to every point, if there is time: fewer may all fall into slow phases of a shared machine
_LARGEST_SHARE = 3.0  # the most time a point takes beyond its least visits, as a multiple of the average point's time
_WEIGHT_OF_STEPS = 3  # visits to a whole step per visit to another point: few points decide the rest of all steps

Progress = Callable[[float, str], None]
"""Gets the seconds spent measuring, and what is being done."""


class BudgetError(ValueError):
    """The time budget does not suffice for the coarse grid; the message says how much does."""


class Session:
    """Measures within a time budget.

    Args:
        measure: times a point.
        refined: grids to refine.
        fixed: grids that are not refined.
        samples: the samples of earlier sessions; the new ones are added to them.
        path: file of the samples, written every few seconds and whenever `run` ends.
        repeats: visits to every point that refining leaves time for.
        clock: what the budget is counted by.
    """

    def __init__(
        self,
        measure: Callable[[Point], Times],
        refined: list[Grid],
        fixed: list[Grid],
        samples: Samples,
        path: Path,
        progress: Progress,
        repeats: int = 4,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        self._measure = measure
        self.refined = refined
        self.fixed = fixed
        self._samples = samples
        self._path = path
        self._progress = progress
        self._repeats = repeats
        self._clock = clock
        self._saved_at = clock()
        self._rng = np.random.default_rng(0)
        for grid in refined:
            grid.restore(samples.points(grid.family))

    def run(self, budget_s: float) -> None:
        """Measure until `budget_s` seconds are spent, those of earlier sessions included.

        Raises:
            BudgetError: the coarse grids take longer.
        """
        try:
            self._cover(budget_s)
            self._refine(budget_s)
            self._repeat(budget_s)
        finally:
            self._samples.save(self._path)

    def _cover(self, budget_s: float) -> None:
        missing = [point for point in self._points() if not self._samples.visits(point)]
        missing.sort(key=_work)
        for done, point in enumerate(missing):
            self._visit(point, "covering the grid")
            if self._samples.spent_s > budget_s and done + 1 < len(missing):
                needed = self._samples.spent_s + sum(map(self._expected_s, missing[done + 1 :]))
                raise BudgetError(
                    f"time_budget_s={budget_s:g}: {len(missing) - done - 1} of {len(self._points())} points of the "
                    f"coarse grid are not measured yet; about {_round_up(needed)} s are needed"
                )

    def _refine(self, budget_s: float) -> None:
        while any([self._halve(grid, budget_s) for grid in self.refined]):
            pass

    def _halve(self, grid: Grid, budget_s: float) -> bool:
        """Halve the intervals of a grid and visit the new points, if there is time for them; returns whether it did."""
        before, round_s = list(grid.axes), sum(map(self._expected_s, self._points()))
        grid.halve()
        new = [point for point in grid.points() if not self._samples.visits(point)]
        new_s = sum(map(self._expected_s, new))
        if self._samples.spent_s + (1 + self._repeats) * new_s + self._repeats * round_s > budget_s:
            grid.axes = before
            return False
        for point in new:
            self._visit(point, f"refining {grid.family}")
        return bool(new)

    def _repeat(self, budget_s: float) -> None:
        points = self._points()
        each = np.repeat(np.arange(len(points)), [_weight(point) for point in points])
        while True:
            order = self._rng.permutation(each).tolist()
            order.sort(key=lambda index: self._samples.visits(points[index]) // _weight(points[index]))
            for index in order:
                if self._samples.spent_s >= budget_s:
                    return
                if self._is_due(points[index], len(points)):
                    self._visit(points[index], "repeating")

    def _is_due(self, point: Point, num_points: int) -> bool:
        """Whether to visit a point again: beyond its least visits it may not take much more than its share of time."""
        samples = self._samples
        visits = samples.visits(point)
        spent_s = visits * (samples.seconds_per_visit(point) or 0.0)
        return visits < _LEAST_VISITS * _weight(point) or spent_s <= _LARGEST_SHARE * samples.spent_s / num_points

    def _points(self) -> list[Point]:
        return [point for grid in (*self.refined, *self.fixed) for point in grid.points()]

    def _visit(self, point: Point, why: str) -> None:
        self._progress(self._samples.spent_s, why)
        started = self._clock()
        times = self._measure(point)
        ended = self._clock()
        self._samples.add(point, times, (ended - started) * 1e-9)
        if (ended - self._saved_at) * 1e-9 > _SAVE_EVERY_S:
            self._samples.save(self._path)
            self._saved_at = ended

    def _expected_s(self, point: Point) -> float:
        """How long a visit to `point` takes, from its own visits or from those of the nearest point of its family."""
        known = self._samples.seconds_per_visit(point)
        if known is not None:
            return known
        visited = self._samples.points(point.family)
        if not visited:
            return 0.01
        nearest = min(visited, key=lambda other: abs(math.log(_work(other) / _work(point))))
        seconds = self._samples.seconds_per_visit(nearest)
        assert seconds is not None
        return seconds * max(1.0, _work(point) / _work(nearest))


def _weight(point: Point) -> int:
    """How many visits to a point each round makes."""
    return _WEIGHT_OF_STEPS if point.family.startswith("step_") else 1


def _work(point: Point) -> float:
    """Roughly how much there is to compute at a point; comparable within a family."""
    if point.family in ("prefill", "step_mixed"):
        return float(1 + sum(point.sizes))
    return float(math.prod(max(1, size) for size in point.sizes))


def _round_up(seconds: float) -> int:
    """`seconds` rounded up to two digits."""
    unit = 10 ** max(0, math.floor(math.log10(max(seconds, 1))) - 1)
    return math.ceil(seconds / unit) * unit
