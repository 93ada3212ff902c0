"""The capacity that fits a set of probes, and its interval.

A probe is a run at one load. What it says is the share of its requests beyond the limit, against the share that the
percentile leaves room for: 1 % at the 99th. Compared are log odds, z = logit(share) - logit(room), which is 0 where the
SLO holds just so. The share of a run is an unbiased estimate, whatever the run's length. The percentile itself is not:
a run that is short against the time over which the queue changes rarely meets a crisis, and its p99 is too low.

Near the capacity c the mean odds of long runs are exp(slope * (x - c)) times those of the room, where x is the
logarithm of the load. The odds of one run of n requests are lognormal about that mean: their logarithm has the variance
v = log(1 + memory / n), and its middle lies v / 2 below the logarithm of the mean. So a short run mostly says too
little, now and then far too much, and runs of different lengths agree on c. `memory` is a number of requests: a run
draws more or less work than others, which moves its z as another load would, by `spread` (of the logarithm of the load)
in a run of _USUAL requests; slow requests that come alone add 1 / room. Far from the capacity the line bends: a share
far below the room, or far above, says only on which side of the capacity the probe is. The posterior is taken on a grid
of (c, slope, spread); all c up to the load at which the system is full are equally likely beforehand, slope and spread
are lognormal about what chat traffic has on several systems, with wide margins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.results.statistics.distributions import log_normal_cdf, normal_quantile

Floats = npt.NDArray[np.float64]

_SLOPES, _SLOPE, _SLOPE_DOUBT = np.geomspace(2.0, 400.0, 18), 50.0, 1.0
# Closed loops have 0.02, a limit on TTFT that breaks in rare long queues has 0.06.
_SPREADS, _SPREAD, _SPREAD_DOUBT = np.geomspace(0.005, 0.1, 10), 0.03, 0.6
_USUAL = 20_000
_NUM_CAPACITIES = 161
# z below and above which a share says only on which side of the capacity it is. Some systems have a floor of slow
# requests at any load, up to 0.6 times the room in a run of 20,000: such shares do not tell how near the capacity is.
_CALM, _CRISIS = -0.4, 2.5
_STRAY = 0.02  # probability that a share was raised by what is not the load, such as a few very long prompts
_REACH = 0.7  # how far beyond the probes the capacity may be (of logarithm): a factor of 2
_FULL_DOUBT = 0.03  # standard deviation of the logarithm of the load at which the system is full
_TAIL, _FAR_TAIL = 0.025, 1e-4


class Point(NamedTuple):
    """What a probe says: the load, the share of requests beyond the limit, how many requests it had, whether it was
    overloaded, which no capacity is, and the load at which the system would be full, 0 where that is not known."""

    load: float
    share: float
    num_requests: int
    overloaded: bool = False
    full: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """The capacity, the ends of its 95 % interval, and its probability below each of `loads`."""

    value: float
    low: float
    high: float
    loads: Floats
    probability: Floats

    @property
    def precision(self) -> float:
        """Half of the interval, relative to the capacity."""
        return (self.high - self.low) / 2 / self.value

    def quantile(self, probability: float) -> float:
        return float(np.interp(probability, self.probability, self.loads))


def estimate(points: Sequence[Point], room: float) -> Estimate:
    """The capacity that the points tell; `room` is the share of requests that may be beyond the limit.

    Where all points are on one side of the capacity, the interval reaches to a factor of 2 beyond them.
    """
    x = np.log([point.load for point in points])
    grid = np.linspace(x.min() - _REACH, x.max() + _REACH, _NUM_CAPACITIES)
    step = grid[1] - grid[0]  # a second, finer grid where the first has its mass
    low, high = np.interp([_FAR_TAIL, 1 - _FAR_TAIL], _posterior(points, grid, room), grid)
    grid = np.linspace(low - 2 * step, high + 2 * step, _NUM_CAPACITIES)
    probability = _posterior(points, grid, room)
    low, middle, high = np.exp(np.interp([_TAIL, 0.5, 1 - _TAIL], probability, grid))
    return Estimate(float(middle), float(low), float(high), np.exp(grid), probability)


def _posterior(points: Sequence[Point], grid: Floats, room: float) -> Floats:
    """The probability that the capacity is below each load of `grid`, logarithms in ascending order."""
    slope, spread = np.meshgrid(_SLOPES, _SPREADS, indexing="ij")
    memory = (slope * spread) ** 2 * _USUAL + 1 / room
    centre = grid[:, None, None]
    log_likelihood = np.zeros((len(grid), *slope.shape))
    for point in points:
        sigma = np.sqrt(np.log1p(memory / point.num_requests))
        line = slope * (math.log(point.load) - centre) - _below_mean(sigma, room)
        log_likelihood += _log_likelihood(_log_odds(point.share, room), point.overloaded, line, sigma)
    if full := _full(points, room):
        log_likelihood += log_normal_cdf((math.log(full) - centre) / _FULL_DOUBT)
    log_likelihood -= (np.log(slope / _SLOPE) / _SLOPE_DOUBT) ** 2 / 2
    log_likelihood -= (np.log(spread / _SPREAD) / _SPREAD_DOUBT) ** 2 / 2
    weights = np.exp(log_likelihood - log_likelihood.max()).sum(axis=(1, 2))
    return np.cumsum(weights) / weights.sum()


def _full(points: Sequence[Point], room: float) -> float:
    """The load at which the system is full: what the probes say, but no less than a load that held. 0 if not known."""
    told = [point.full for point in points if point.full]
    return max([median(told), *(p.load for p in points if p.share <= room and not p.overloaded)]) if told else 0.0


def _below_mean(sigma: Floats, room: float) -> Floats:
    """How far the middle of the log odds of runs is below those of the mean share: that of lognormal shares, or, where
    most of the mean is of runs with all requests beyond the limit, so that only `room` of the runs are such."""
    return np.minimum((1 - 2 * room) * sigma**2 / 2, max(-normal_quantile(room), 0.0) * sigma)


def _log_likelihood(z: float, overloaded: bool, line: Floats, sigma: Floats) -> Floats:
    """Of a probe whose log odds are `z` where the line gives `line`, up to a constant."""
    if overloaded and z < 0:
        return log_normal_cdf(line / sigma)
    if z < _CALM:
        return log_normal_cdf((_CALM - line) / sigma)
    if z > _CRISIS:
        return log_normal_cdf((line - _CRISIS) / sigma)
    known = -(((z - line) / sigma) ** 2) / 2 - np.log(sigma * math.sqrt(2 * math.pi))
    stray = math.log(_STRAY / (_CRISIS - _CALM))
    return np.where(line < z, np.logaddexp(math.log(1 - _STRAY) + known, stray), known)


def _log_odds(share: float, room: float) -> float:
    share = min(max(share, 1e-9), 1 - 1e-9)
    return math.log(share / (1 - share)) - math.log(room / (1 - room))
