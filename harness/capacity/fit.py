"""The capacity that fits a set of probes, and its interval.

A probe is a run at one load. What it says is the share of its requests beyond the limit, against the share that the
percentile leaves room for: 1 % at the 99th. Compared are log odds, z = logit(share) - logit(room), which is 0 where the
SLO holds just so. The share of a run is an unbiased estimate, whatever the run's length. The percentile itself is not:
a run that is short against the time over which the queue changes rarely meets a crisis, and its p99 is too low.

Near the capacity c, z = slope * (x - c + spread * noise) + counting noise, where x is the logarithm of the load and
each run has a normal noise of its own, as it draws more or less work than others. Far from it the line bends: a share
far below the room, or far above, says only on which side of the capacity the probe is. The posterior is taken on a
grid of (c, slope, spread); all c are equally likely beforehand, slope and spread are lognormal about what chat traffic
has on several systems, with wide margins. The capacity is the load where the mean share of many runs is the room. That
is below c, since a crisis adds more to a mean than a calm run takes from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtri

Floats = npt.NDArray[np.float64]

_SLOPES, _SLOPE, _SLOPE_DOUBT = np.geomspace(2.0, 400.0, 18), 50.0, 1.0
# Of runs of _USUAL requests; longer ones differ less, by the root. The number of arrivals varies by 0.7 %, their tokens
# by as much, and how they fall together by somewhat more.
_SPREADS, _SPREAD, _SPREAD_DOUBT = np.geomspace(0.003, 0.03, 9), 0.015, 0.4
_USUAL = 20_000
_NUM_CAPACITIES = 161
_CALM, _CRISIS = -1.2, 2.5  # z below and above which a share says only on which side of the capacity it is
_SHORT_RUN = 0.05  # what the load of a run shorter than the longest is uncertain by besides (of logarithm)
_STRAY = 0.05  # probability that a share was raised by what is not the load, such as a few very long prompts
_REACH = 0.7  # how far beyond the probes the capacity may be (of logarithm): a factor of 2
_TAIL, _FAR_TAIL = 0.025, 1e-4


class Point(NamedTuple):
    """What a probe says: the load, the share of requests beyond the limit, how many requests it had, whether it was
    overloaded, which no capacity is, and how many requests beyond the limit come together."""

    load: float
    share: float
    num_requests: int
    overloaded: bool = False
    clump: float = 1.0


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
    values, probability = _posterior(points, grid, room)
    step = grid[1] - grid[0]  # a second, finer grid where the first has its mass
    low, high = np.interp([_FAR_TAIL, 1 - _FAR_TAIL], probability, values) + [-2 * step, 2 * step]
    values, probability = _posterior(points, np.linspace(low, high, _NUM_CAPACITIES), room)
    low, middle, high = np.exp(np.interp([_TAIL, 0.5, 1 - _TAIL], probability, values))
    return Estimate(float(middle), float(low), float(high), np.exp(values), probability)


def _posterior(points: Sequence[Point], grid: Floats, room: float) -> tuple[Floats, Floats]:
    """Logarithms of loads, ascending, and the probability that the capacity is below each."""
    centre, slope, spread = np.meshgrid(grid, _SLOPES, _SPREADS, indexing="ij")
    log_likelihood = np.zeros(centre.shape)
    longest = max(point.num_requests for point in points)
    clump = _clump(points, room)
    for point in points:
        line = slope * (math.log(point.load) - centre)
        doubt = spread**2 * _USUAL / point.num_requests + (_SHORT_RUN**2 if point.num_requests < longest else 0.0)
        sigma = np.sqrt(slope**2 * doubt + clump / (room * point.num_requests))
        log_likelihood += _log_likelihood(_log_odds(point.share, room), point.overloaded, line, sigma)
    log_likelihood -= (np.log(slope / _SLOPE) / _SLOPE_DOUBT) ** 2 / 2
    log_likelihood -= (np.log(spread / _SPREAD) / _SPREAD_DOUBT) ** 2 / 2
    weights = np.exp(log_likelihood - log_likelihood.max())
    values = (centre - _below_centre(slope, spread * math.sqrt(_USUAL / longest), room)).ravel()
    order = np.argsort(values)
    probability = np.cumsum(weights.ravel()[order])
    return values[order], probability / probability[-1]


def _below_centre(slope: Floats, spread: Floats, room: float) -> Floats:
    """How far below c the mean share of runs is the room: that of lognormal shares, or, where most of the mean is of
    runs with all requests beyond the limit, the load that only `room` of the runs exceed."""
    return np.minimum((1 - 2 * room) * slope * spread**2 / 2, max(-float(ndtri(room)), 0.0) * spread)


def _clump(points: Sequence[Point], room: float) -> float:
    """How many requests beyond the limit come together while the SLO holds; independent ones would come alone."""
    calm = [point for point in points if 0 < point.share <= room]
    counts = [point.share * point.num_requests for point in calm]
    return sum(n * point.clump for n, point in zip(counts, calm, strict=True)) / sum(counts) if calm else 1.0


def _log_likelihood(z: float, overloaded: bool, line: Floats, sigma: Floats) -> Floats:
    """Of a probe whose log odds are `z` where the line gives `line`, up to a constant."""
    if overloaded and z < 0:
        return log_ndtr(line / sigma)
    if z < _CALM:
        return log_ndtr((_CALM - line) / sigma)
    if z > _CRISIS:
        return log_ndtr((line - _CRISIS) / sigma)
    known = -(((z - line) / sigma) ** 2) / 2 - np.log(sigma * math.sqrt(2 * math.pi))
    stray = math.log(_STRAY / (_CRISIS - _CALM))
    return np.where(line < z, np.logaddexp(math.log(1 - _STRAY) + known, stray), known)


def _log_odds(share: float, room: float) -> float:
    share = min(max(share, 1e-9), 1 - 1e-9)
    return math.log(share / (1 - share)) - math.log(room / (1 - room))
