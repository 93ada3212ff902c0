"""Derivative-free minimisation in a box: SciPy's Nelder-Mead on the unit cube, restarted, deterministic.

Statistics of a simulation are a jagged function of its constants, with several basins and steps on which a simplex
comes to rest too early: it starts at each of the best of some points spread over the box, and then again around the
best so far with edges of other lengths and directions. Points outside the box are mirrored at the limit: moved to it,
simplices would go flat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.stats.qmc import Halton

from harness.results.metrics import Floats
from harness.runs.fitted import Constant

_POWER = 3  # of a side of the cube: fine steps near the lower limit, as the limits of a time may span decades
_LOOKS = 8  # points per constant at which to look first
_STARTS = 4  # of these points, the best, from which to descend
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
    best: tuple[float, Floats] = (np.inf, start)

    def evaluate(point: Floats) -> float:
        nonlocal best
        # the defaults themselves, free of rounding, so that the first value is that of the model as it is
        given = start if not seen else low + _mirrored(point) ** _POWER * (high - low)
        seen.append(objective(dict(zip(names, given.tolist(), strict=True))))
        if len(seen) == 1 or seen[-1] < best[0]:
            best = seen[-1], given
        progress(len(seen), best[0])
        return seen[-1]

    def best_point() -> Floats:
        return ((best[1] - low) / (high - low)).clip(0, 1) ** (1 / _POWER)  # a default may lie outside the limits

    looks = [best_point(), *Halton(len(names), rng=0).random(_LOOKS * len(names))][:max_evaluations]
    values = [evaluate(point) for point in looks]
    for i in np.argsort(values, kind="stable")[:_STARTS]:
        _descend(evaluate, looks[i], _EDGES[0], max_evaluations - len(seen))
    before = np.inf
    while best[0] < (1 - _GAIN) * before and len(seen) < max_evaluations:
        before = best[0]
        for i, edge in enumerate(_EDGES):
            _descend(evaluate, best_point(), edge if i % 2 == 0 else -edge, max_evaluations - len(seen))
    return Fit(dict(zip(names, best[1].tolist(), strict=True)), best[0], seen[0], len(seen))


def _mirrored(point: Floats) -> Floats:
    return 1 - np.abs(1 - np.mod(np.abs(point), 2.0))


def _descend(evaluate: Callable[[Floats], float], start: Floats, edge: float, max_evaluations: int) -> None:
    """Evaluate points of the unit cube until the simplex, at first of edges `edge` from `start`, has shrunk to one."""
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
