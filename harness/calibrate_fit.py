"""Derivative-free minimisation in a box: the method of Nelder and Mead on the unit cube, deterministic.

J. A. Nelder, R. Mead, "A simplex method for function minimization", The Computer Journal 7 (1965), with the adaptive
coefficients of F. Gao, L. Han, Computational Optimization and Applications 51 (2012). Points outside are mirrored at
the limit. Statistics of a simulation are a jagged function of its constants, with several basins and steps on which a
simplex comes to rest too early: it starts at the best of some points spread over the box, and again around the best so
far with edges of other lengths and directions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from harness.calibration import Constant
from harness.metrics import Floats

_POWER = 3  # of a side of the cube: fine steps near the lower limit, as the limits of a time may span decades
_LOOKS = 8  # points per constant at which to look first
_EDGES = (0.1, 0.04, 0.1, 0.01)  # of the simplices to start with, in the unit cube
_SIZE = 2e-3  # a simplex is done when it is this small beside the one that it started as
_GAIN = 1e-3  # a round over all edges is the last when it lowers the objective by less, relatively


class Fit(NamedTuple):
    """The best values found, their objective, that of the start, and how often the objective was evaluated."""

    values: dict[str, float]
    objective: float
    start_objective: float
    num_evaluations: int


def minimise(
    objective: Callable[[Mapping[str, float]], float],
    constants: Mapping[str, Constant],
    max_evaluations: int,
    progress: Callable[[int, float], None],
) -> Fit:
    """Minimise `objective` over the constants, from their defaults, within their limits.

    `progress` is told the number of evaluations and the lowest value after each.
    """
    names = list(constants)
    low, high = (np.array([getattr(constants[name], key) for name in names]) for key in ("low", "high"))
    start = np.array([constants[name].default for name in names])
    seen: list[float] = []
    best: list[tuple[float, Floats]] = []

    def evaluate(point: Floats) -> float:
        values = low + point**_POWER * (high - low)
        # the defaults themselves, free of rounding, so that the first value is that of the model as it is
        given = start if not seen else values
        value = objective(dict(zip(names, given.tolist(), strict=True)))
        if not best or value < best[0][0]:
            best[:] = [(value, given)]
        seen.append(value)
        progress(len(seen), best[0][0])
        return value

    def place(values: Floats) -> Floats:
        return (((values - low) / (high - low)) ** (1 / _POWER)).clip(0, 1)

    with suppress(_SpentError):
        budget = _Budget(evaluate, max_evaluations)
        for point in [place(start), *_spread(_LOOKS * len(names), len(names))]:
            budget(point)
        point, before = place(best[0][1]), np.inf
        while not best or best[0][0] < (1 - _GAIN) * before:
            before = best[0][0] if best else np.inf
            for i, edge in enumerate(_EDGES):
                _nelder_mead(budget, point, edge if i % 2 == 0 else -edge)
                point = place(best[0][1])
    value, point = best[0]
    return Fit(dict(zip(names, point.tolist(), strict=True)), value, seen[0], len(seen))


def _spread(count: int, dimensions: int) -> Floats:
    """Points spread evenly over the unit cube: the lattice of Roberts' R sequence, [count, dimensions].

    Its steps are the powers of 1 / g with g the root of g^(d+1) = g + 1 (M. Roberts, "The unreasonable effectiveness of
    quasirandom sequences", 2018).
    """
    g = 2.0
    for _ in range(50):
        g = (1 + g) ** (1 / (dimensions + 1))
    steps = g ** -np.arange(1.0, dimensions + 1)
    return np.mod(0.5 + np.outer(np.arange(1, count + 1), steps), 1.0)


class _SpentError(Exception):
    """The budget of evaluations is used up."""


class _Budget:
    """An objective that can be evaluated a limited number of times; raises _SpentError after that."""

    def __init__(self, evaluate: Callable[[Floats], float], limit: int) -> None:
        self._evaluate = evaluate
        self._left = limit

    def __call__(self, point: Floats) -> float:
        if self._left == 0:
            raise _SpentError
        self._left -= 1
        return self._evaluate(point)


def _mirrored(point: Floats) -> Floats:
    """`point` with what is outside the unit cube mirrored at its faces; moved to a face, simplices would go flat."""
    return 1 - np.abs(1 - np.mod(np.abs(point), 2.0))


def _nelder_mead(evaluate: Callable[[Floats], float], start: Floats, edge: float) -> None:
    """Evaluate points of the unit cube until the simplex, at first of edges `edge` from `start`, has shrunk to one."""
    n = len(start)
    # with one dimension the adaptive coefficients would not contract
    expand, contract, shrink = (1 + 2 / n, 0.75 - 0.5 / n, 1 - 1 / n) if n > 1 else (2.0, 0.5, 0.5)
    points = np.tile(start, (n + 1, 1))
    for i in range(n):
        points[i + 1, i] += edge if 0 <= start[i] + edge <= 1 else -edge
    values = np.array([evaluate(point) for point in points])
    while np.ptp(points, axis=0).max() > _SIZE * abs(edge):
        order = np.argsort(values, kind="stable")
        points, values = points[order], values[order]
        centre = points[:-1].mean(axis=0)

        def at(step: float, centre: Floats = centre, worst: Floats = points[-1]) -> tuple[Floats, float]:
            point = _mirrored(centre + step * (centre - worst))
            return point, evaluate(point)

        tried, value = at(1.0)
        if value < values[0]:
            further, lower = at(expand)
            tried, value = (further, lower) if lower < value else (tried, value)
        elif value >= values[-2]:
            tried, value = min((tried, value), at(contract if value < values[-1] else -contract), key=lambda t: t[1])
        if value < values[-1]:
            points[-1], values[-1] = tried, value
            continue
        points[1:] = points[0] + shrink * (points[1:] - points[0])
        values[1:] = [evaluate(point) for point in points[1:]]
