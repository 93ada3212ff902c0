"""How sure a mean or a percentile of a run's latencies is: 95 % confidence intervals for the value of a long run.

Latencies of neighbouring requests are alike, since the same queue delays them, so n requests say less than n
independent ones. Requests in order of arrival are divided into batches; means of batches are nearly independent when a
batch is longer than the memory of the queue. The interval of a mean is Student's, from the means of 4, 8, 16 and 32
batches, of which the widest counts, taken on the logarithm of the mean since latencies are skewed. The interval of a
percentile p is that of the share of requests at or below it, p ± h, read off the sorted latencies at p - h and p + h
(order statistics with the effective number of requests). h is symmetric in the log-odds of the share.

Batches know only the queues that the run has seen. `harness.results.statistics.queue_noise` tells how far the queue of
a long run may be from that; an interval is at least as wide. Near capacity that leaves no upper bound: the run is too
short.

A run begins and ends with an empty system, which a long run does not. Requests of the ramp-up and of the drain are left
out of intervals, and a run that is short beside the time that a request takes has none (`settled`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from harness.results.statistics.distributions import t_quantile
from harness.results.tables import Floats

_STUDENT = {num_batches: t_quantile(0.975, num_batches - 1) for num_batches in (4, 8, 16, 32)}
_FEWEST = 32  # values from which an interval is told
_SHORTEST = 16  # times that a request takes, for which arrivals go on at least
_RAMP_UP, _DRAIN = 2, 1  # times that a request takes, after and before which the system is as in a long run

Interval = tuple[float, float]
NOTHING: Interval = (math.nan, math.nan)


def settled(arrival_s: Floats, e2el_s: Floats) -> npt.NDArray[np.bool_]:
    """bool[n]: requests that found the system, and left it, as it is in a long run; none of a run that is too short."""
    nobody = np.zeros(len(arrival_s), dtype=np.bool_)
    if not len(arrival_s):
        return nobody
    first, last, taken = arrival_s.min(), arrival_s.max(), float(e2el_s.mean())
    if last - first < _SHORTEST * taken:
        return nobody
    return (arrival_s >= first + _RAMP_UP * taken) & (arrival_s <= last - _DRAIN * taken)


def of_mean(values: Floats, unseen: float = 0.0) -> Interval:
    """95 % interval of the mean of `values` >= 0, float64[n] in order of arrival; NaN where they are too few.

    unseen: by how much queues that the run has not seen may raise the mean; infinite if nobody knows.
    """
    mean = float(values.mean()) if len(values) else 0.0
    if len(values) < _FEWEST or not mean > 0:
        return NOTHING
    factor = math.exp(min(_half_width(values) / mean, 700.0))
    high = max(mean * factor, mean + unseen)
    return mean / factor, high if math.isfinite(high) else math.nan


def of_percentiles(
    values: Floats, percentiles: Sequence[float], unseen: Callable[[float], float] = lambda _: 0.0
) -> list[Interval]:
    """95 % intervals of percentiles of `values`, float64[n] in order of arrival.

    A bound is NaN where the values are too few to know it, such as the upper bound of p99 of 100 values.

    Args:
        unseen: for the share of values at or below a percentile, half of the interval that this share has at least.
    """
    if len(values) < _FEWEST:
        return [NOTHING] * len(percentiles)
    ordered = np.sort(values)
    positions = (len(values) - 1) * np.asarray(percentiles, dtype=np.float64) / 100
    cuts = ordered[np.rint(positions).astype(np.int64)]
    return [
        _of_percentile(values, ordered, percentile / 100, cut, unseen(percentile / 100))
        for percentile, cut in zip(percentiles, cuts, strict=True)
    ]


def _of_percentile(values: Floats, ordered: Floats, share: float, cut: float, unseen: float) -> Interval:
    variance = share * (1 - share)
    if not variance:
        return NOTHING
    # at least that of independent values: rare events may all fall into a few batches
    half = max(_half_width((values <= cut).astype(np.float64)), 2 * math.sqrt(variance / len(values)), unseen)
    odds, ratio = math.log(share / (1 - share)), min(half / variance, 600.0)
    low, high = ((len(ordered) + 1) / (1 + math.exp(-odds + sign * ratio)) for sign in (1, -1))
    return (
        math.nan if low < 1 else float(ordered[math.floor(low) - 1]),
        math.nan if high > len(ordered) else float(ordered[math.ceil(high) - 1]),
    )


def _half_width(values: Floats) -> float:
    """Half of the 95 % interval of the mean of a series."""
    widths = []
    for num_batches, student in _STUDENT.items():
        means = _batch_means(values, num_batches)
        widths.append(student * float(means.std(ddof=1)) / math.sqrt(num_batches))
    return max(widths)


def _batch_means(values: Floats, num_batches: int) -> npt.NDArray[np.float64]:
    """Means of consecutive batches; the values that do not fill a batch are left out at the start."""
    size = len(values) // num_batches
    return values[len(values) - size * num_batches :].reshape(num_batches, size).mean(axis=1)
