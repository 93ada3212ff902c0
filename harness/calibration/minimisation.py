"""Derivative-free minimisation in a box: SciPy's Nelder-Mead on the unit cube, restarted, deterministic.

The statistics of a simulation are a jagged function of its constants, with several basins, and with plateaus on which a
simplex stops too early. So the search first evaluates points spread over the box and starts a simplex at each of the
best of them; then it restarts around the best point so far with edges of other lengths and directions. Points outside
the box are mirrored at its limits; a simplex whose points were moved to the limit would lose a dimension.

Where the objective is the norm of a vector, Gauss-Newton steps from the defaults come first: of five constants
they find in 40 evaluations what simplices did not in 400.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.optimize import lsq_linear, minimize
from scipy.stats.qmc import Halton

from harness.results.tables import Floats
from simulator.costs.constants import Constant

_POWER = 3  # a constant is low + x**3 * (high - low): fine steps near the lower limit, for ranges of several decades
_LOOKS = 8  # points per constant that are evaluated first
_STARTS = 4  # of these points, how many of the best start a simplex
_EDGES = (0.1, 0.04, 0.1, 0.01)  # lengths of the edges of the first simplices, in the unit cube
_SIZE = 2e-3  # a simplex is done when it has shrunk to this fraction of its first size
_DIFFERENCE = 0.1  # for slopes, in widths: the jumps of percentiles are smaller than what that changes
_DAMPINGS = (1e-4, 1e-2, 1e-1)  # of Gauss-Newton steps, one after the other until one lowers the objective
_NO_WIDTH = 0.1  # of a range stand for the width of a constant that has none
_GAIN = 1e-3  # the search ends when a round over all edges lowers the objective by less than this fraction


Residuals = Callable[[Mapping[str, float]], Floats]


class Fit(NamedTuple):
    """The best values found, the objective there and at the start, and the number of evaluations."""

    values: dict[str, float]
    objective: float
    start_objective: float
    num_evaluations: int


def minimise(
    objective: Callable[[Mapping[str, float]], float],
    constants: Mapping[str, Constant],
    max_evaluations: int,
    progress: Callable[[int, float], None],
    residuals: Residuals | None = None,
) -> Fit:
    """Minimise `objective` over the constants, from their defaults, within their limits; `residuals` is a vector whose
    norm it is.

    `progress` is called after each evaluation with the number of evaluations and the lowest value so far.
    """
    names = list(constants)
    low, high = (np.array([getattr(constants[name], key) for name in names]) for key in ("low", "high"))
    start = np.array([constants[name].default for name in names])
    seen: list[float] = []
    best: tuple[float, Floats] = (np.inf, start)

    def note(given: Floats, value: float) -> None:
        nonlocal best
        seen.append(value)
        if len(seen) == 1 or value < best[0]:
            best = value, given
        progress(len(seen), best[0])

    def at(given: Floats) -> Floats:
        assert residuals is not None
        found = residuals(dict(zip(names, given.tolist(), strict=True)))
        note(given, float(np.linalg.norm(found)))
        return found

    def evaluate(point: Floats) -> float:
        # the first point is the defaults themselves, without the rounding of the mapping to the cube and back
        given = start if not seen else low + _mirrored(point) ** _POWER * (high - low)
        note(given, objective(dict(zip(names, given.tolist(), strict=True))))
        return seen[-1]

    def best_point() -> Floats:
        return ((best[1] - low) / (high - low)).clip(0, 1) ** (1 / _POWER)  # a default may lie outside the limits

    if residuals is not None:
        given_widths = np.array([constants[name].width for name in names])
        widths = np.where(np.isinf(given_widths), _NO_WIDTH * (high - low), given_widths)
        _approach(at, start, widths, (low, high), max_evaluations)
    looks = [best_point(), *Halton(len(names), rng=0).random(_LOOKS * len(names))]
    looks = looks[: max_evaluations - len(seen)]
    values = [evaluate(point) for point in looks]
    for i in np.argsort(values, kind="stable")[:_STARTS]:
        _descend(evaluate, looks[i], _EDGES[0], max_evaluations - len(seen))
    before = np.inf
    while best[0] < (1 - _GAIN) * before and len(seen) < max_evaluations:
        before = best[0]
        for i, edge in enumerate(_EDGES):
            _descend(evaluate, best_point(), edge if i % 2 == 0 else -edge, max_evaluations - len(seen))
    return Fit(dict(zip(names, best[1].tolist(), strict=True)), best[0], seen[0], len(seen))


def _approach(
    residuals: Callable[[Floats], Floats], start: Floats, widths: Floats, limits: tuple[Floats, Floats], most: int
) -> None:
    """Gauss-Newton steps from `start` within the limits, with at most so many evaluations, until none is a gain."""
    point, found, left = start, residuals(start), most - 1
    low, high = limits
    while left > len(start):
        slopes = np.empty((len(found), len(start)))
        for i, width in enumerate(widths):
            step = _DIFFERENCE if point[i] + _DIFFERENCE * width <= high[i] else -_DIFFERENCE
            other = point.copy()
            other[i] += step * width
            slopes[:, i] = (residuals(other) - found) / step
        left -= len(start)
        for damping in _DAMPINGS[:left]:
            damped = np.vstack([slopes, np.sqrt(damping) * np.eye(len(start))])
            reach = (low - point) / widths - 1e-9, (high - point) / widths + 1e-9
            move = lsq_linear(damped, np.concatenate([-found, np.zeros(len(start))]), reach).x
            other = (point + move * widths).clip(low, high)
            new, left = residuals(other), left - 1
            if new @ new < (1 - _GAIN) * (found @ found):
                point, found = other, new
                break
        else:
            return


def _mirrored(point: Floats) -> Floats:
    return 1 - np.abs(1 - np.mod(np.abs(point), 2.0))


def _descend(evaluate: Callable[[Floats], float], start: Floats, edge: float, max_evaluations: int) -> None:
    """Nelder-Mead in the unit cube, from a simplex with a corner at `start` and edges of length `edge`."""
    edges = np.where((start + edge >= 0) & (start + edge <= 1), edge, -edge)
    options = {
        "initial_simplex": np.vstack([start, start + np.diag(edges)]),
        "adaptive": len(start) > 1,  # with one dimension the adaptive coefficients would not contract
        "xatol": _SIZE * abs(edge),
        "fatol": np.inf,
        "maxfev": max_evaluations,
        "maxiter": max_evaluations,
    }
    minimize(evaluate, start, method="Nelder-Mead", options=options)
