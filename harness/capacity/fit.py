"""The capacity that fits a set of probes, and its interval.

A probe is a run at one load. What it says is the share of its requests beyond the limit, against the share that the
percentile leaves room for: 1 % at the 99th. Compared are log odds, z = logit(share) - logit(room), which is 0 where the
SLO holds just so. The share of a run is an unbiased estimate, whatever the run's length. The percentile itself is not:
a run that is short against the system's memory sees its rare crises too seldom, and its p99 is too low.

Near the capacity c, z = slope * (x - c) + spread * noise, where x is the logarithm of the load and each run has a noise
of its own (normal), as it draws more or less work than others. Far from it the line bends: a share far below the room,
or far above, says only on which side of the capacity the probe is. The likelihood is taken on a grid of (c, slope,
spread), each equally likely beforehand (slope and spread in logarithms); the capacity is the load where the mean share
of many runs is the room, which is below c, since crises weigh more in a mean than calm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

Floats = npt.NDArray[np.float64]

_SLOPES = np.geomspace(2.0, 400.0, 18)
_SPREADS = np.geomspace(0.002, 0.06, 10)  # of logarithm of the load
_NUM_CAPACITIES = 161
_CALM, _CRISIS = -1.2, 2.5  # z below and above which a share says only on which side of the capacity it is
_SHORT_RUN = 0.1  # the load of a run shorter than the longest is uncertain by this (of logarithm)
_REACH = 0.7  # how far beyond the probes the capacity may be (of logarithm): a factor of 2
_INTERVAL = (0.025, 0.975)


class Point(NamedTuple):
    """What a probe says: the load, the share of requests beyond the limit, and how many requests it had."""

    load: float
    share: float
    num_requests: int


class Estimate(NamedTuple):
    """The capacity and its 95 % interval; `quantile` gives loads below which it is with a probability."""

    value: float
    low: float
    high: float
    capacities: Floats
    cumulative: Floats

    @property
    def precision(self) -> float:
        """Half of the interval, relative to the capacity."""
        return (self.high - self.low) / 2 / self.value

    def quantile(self, probability: float) -> float:
        return math.exp(np.interp(probability, self.cumulative, self.capacities))


def estimate(points: Sequence[Point], room: float) -> Estimate:
    """The capacity that the points tell; `room` is the share of requests that may be beyond the limit.

    With points on one side of the capacity only, the interval reaches to a factor of 2 beyond them.
    """
    x = np.log([point.load for point in points])
    share = np.clip([point.share for point in points], 1e-9, 1 - 1e-9)
    z = np.log(share / (1 - share)) - math.log(room / (1 - room))
    longest = max(point.num_requests for point in points)
    length = np.array([point.num_requests / longest for point in points])
    grid = np.linspace(x.min() - _REACH, x.max() + _REACH, _NUM_CAPACITIES)
    weights, centres = _posterior(x, z, length, grid, room, 2/(room*longest))
    # A second, finer grid where the first has its mass.
    low, high = _quantiles(weights, centres, (1e-4, 1 - 1e-4))
    step = grid[1] - grid[0]
    grid = np.linspace(low - 2 * step, high + 2 * step, _NUM_CAPACITIES)
    weights, centres = _posterior(x, z, length, grid, room, 2/(room*longest))
    order = np.argsort(centres, axis=None)
    capacities, cumulative = centres.ravel()[order], np.cumsum(weights.ravel()[order])
    low, middle, high = np.exp(_quantiles(weights, centres, (_INTERVAL[0], 0.5, _INTERVAL[1])))
    return Estimate(float(middle), float(low), float(high), capacities, cumulative / cumulative[-1])


def _posterior(x: Floats, z: Floats, length: Floats, grid: Floats, room: float, counting: float) -> tuple[Floats, Floats]:
    """Probability of each (c, slope, spread), and the capacity in log load that belongs to it: [c, slope, spread]."""
    centre, slope, spread = np.meshgrid(grid, _SLOPES, _SPREADS, indexing="ij")
    log_likelihood = np.zeros(centre.shape)
    for at, seen, part in zip(x, z, length, strict=True):
        line = slope * (at - centre)
        sigma = np.sqrt(counting / part + slope**2 * (spread**2 / part + _SHORT_RUN**2 * (part < 1)))
        if seen < _CALM:
            log_likelihood += log_ndtr((_CALM - line) / sigma)
        elif seen > _CRISIS:
            log_likelihood += log_ndtr((line - _CRISIS) / sigma)
        else:
            log_likelihood -= ((seen - line) / sigma) ** 2 / 2 + np.log(sigma)
    weights = np.exp(log_likelihood - log_likelihood.max())
    return weights / weights.sum(), centre - (1 - 2 * room) * slope * spread**2 / 2


def _quantiles(weights: Floats, values: Floats, probabilities: Sequence[float]) -> Floats:
    order = np.argsort(values, axis=None)
    cumulative = np.cumsum(weights.ravel()[order])
    return np.interp(probabilities, cumulative / cumulative[-1], values.ravel()[order])
