"""Decides what to measure next, so that any time budget gives a usable profile.

First every point of the coarse grids once, smallest first. Then grids grow where interpolation is worst, as long as
there is time to visit all points a few times more. The rest of the time goes round all points, those visited least
first, as interrupted sessions must leave none behind, and else in an order drawn anew each time: so a slow phase of a
shared machine hits all of them alike. Whole steps are visited more often.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from simulator.profiler.grid import Grid
from simulator.profiler.samples import Point, Samples, Times

_GOOD_ENOUGH = 0.02  # no line is added for a smaller error
_SAVE_EVERY_S = 10.0
_LEAST_VISITS = 20  # of every point, if there is time: fewer may all fall into slow phases of a shared machine
_LARGEST_SHARE = 3.0  # of the time, in that of an average point
_WEIGHT_OF_STEPS = 3  # times as many visits to whole steps: they are few, and the rest of all steps is known by them

Progress = Callable[[float, str], None]
"""Told the seconds spent measuring, and what is being measured."""


class BudgetError(ValueError):
    """The time budget does not suffice for the coarse grid; the message says how much does."""


class Session:
    """Measures within a budget; the samples are kept in `path` from time to time, and at the end of `run` in any case.

    Args:
        measure: times a point.
        refined: grids to refine.
        fixed: grids to take as they are.
        samples: what is known already; more is added to them.
        calls: calls per step of the operators.
        repeats: visits to every point that refining leaves time for.
    """

    def __init__(
        self,
        measure: Callable[[Point], Times],
        refined: list[Grid],
        fixed: list[Grid],
        samples: Samples,
        calls: Mapping[str, int],
        path: Path,
        progress: Progress,
        repeats: int = 4,
    ) -> None:
        self._measure = measure
        self.refined = refined
        self.fixed = fixed
        self._samples = samples
        self._calls = calls
        self._path = path
        self._progress = progress
        self._repeats = repeats
        self._saved_at = time.monotonic()
        self._rng = np.random.default_rng(0)
        for grid in refined:
            grid.restore(samples.points(grid.family))

    def run(self, budget_s: float) -> None:
        """Measure until `budget_s` seconds were spent, those of earlier sessions included.

        Raises:
            BudgetError: the coarse grid takes longer.
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
        while True:
            best = max(
                ((worst, grid) for grid in self.refined if (worst := grid.worst()) is not None),
                key=lambda entry: entry[0][0],
                default=None,
            )
            if best is None or best[0][0] < _GOOD_ENOUGH:
                return
            (_, axis, low, high), grid = best
            round_s = sum(map(self._expected_s, self._points()))
            line = grid.insert(axis, low, high)
            line_s = sum(map(self._expected_s, line))
            if self._samples.spent_s + (1 + self._repeats) * line_s + self._repeats * round_s > budget_s:
                grid.remove(axis, low, high)
                return
            for point in line:
                if not self._samples.visits(point):
                    self._visit(point, f"refining {grid.family}")
            grid.learn(axis, low, high, self._values())

    def _values(self) -> Callable[[Point], float]:
        """The time at a point with the least that a layer takes besides: errors of what is small hardly count."""
        samples, calls = self._samples, self._calls
        others = min((samples.total(point, calls) for point in samples.points("tokens")), default=0.0)
        besides = others / max(calls.values())
        return lambda point: samples.total(point, calls) + (0.0 if point.family == "tokens" else besides)

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
        """Whether a point may take more time: none takes much more than its share, when it has what it needs."""
        samples = self._samples
        visits = samples.visits(point)
        spent_s = visits * (samples.seconds_per_visit(point) or 0.0)
        return visits < _LEAST_VISITS * _weight(point) or spent_s <= _LARGEST_SHARE * samples.spent_s / num_points

    def _points(self) -> list[Point]:
        return [point for grid in (*self.refined, *self.fixed) for point in grid.points()]

    def _visit(self, point: Point, why: str) -> None:
        self._progress(self._samples.spent_s, why)
        started = time.perf_counter()
        times = self._measure(point)
        self._samples.add(point, times, time.perf_counter() - started)
        if time.monotonic() - self._saved_at > _SAVE_EVERY_S:
            self._samples.save(self._path)
            self._saved_at = time.monotonic()

    def _expected_s(self, point: Point) -> float:
        """How long a visit takes: as it did, or as the nearest visit of the family did, by the work there."""
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
    """How many visits count as one; so many are made of each round."""
    return _WEIGHT_OF_STEPS if point.family.startswith("step_") else 1


def _work(point: Point) -> float:
    """How much there is to do, roughly; comparable within a family."""
    if point.family in ("prefill", "step_mixed"):
        return float(1 + sum(point.sizes))
    return float(math.prod(max(1, size) for size in point.sizes))


def _round_up(seconds: float) -> int:
    """To two digits."""
    unit = 10 ** max(0, math.floor(math.log10(max(seconds, 1))) - 1)
    return math.ceil(seconds / unit) * unit
