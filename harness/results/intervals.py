"""How sure a mean or a percentile of a run's latencies is: 95 % confidence intervals for the value of a long run.

Latencies of neighbouring requests are alike, since the same queue delays them, so n requests say less than n
independent ones. Requests in order of arrival are divided into batches; means of batches are nearly independent when a
batch is longer than the memory of the queue. The interval of a mean is Student's, from the means of 8, 16 and 32
batches, of which the widest counts. The interval of a percentile p is that of the share of requests at or below it,
p ± h, read off the sorted latencies at p - h and p + h (Schruben's form of order statistics, with the effective number
of requests).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.results.tables import Floats

_STUDENT = {8: 2.365, 16: 2.131, 32: 2.040}  # 97.5 % quantile of Student's t with one degree of freedom less
_FEWEST = 2 * min(_STUDENT)  # values from which an interval is told

Interval = tuple[float, float]
NOTHING: Interval = (math.nan, math.nan)


def of_mean(values: Floats) -> Interval:
    """95 % interval of the mean of `values`, float64[n] in order of arrival; NaN where they are too few."""
    if len(values) < _FEWEST:
        return NOTHING
    mean, half = float(values.mean()), _half_width(values)
    return mean - half, mean + half


def of_percentiles(values: Floats, percentiles: Sequence[float]) -> list[Interval]:
    """95 % intervals of percentiles of `values`, float64[n] in order of arrival.

    A bound is NaN where the values are too few to know it, such as the upper bound of p99 of 100 values.
    """
    if len(values) < _FEWEST:
        return [NOTHING] * len(percentiles)
    ordered = np.sort(values)
    positions = (len(values) - 1) * np.asarray(percentiles, dtype=np.float64) / 100
    cuts = ordered[np.rint(positions).astype(np.int64)]
    return [
        _of_percentile(values, ordered, percentile / 100, cut)
        for percentile, cut in zip(percentiles, cuts, strict=True)
    ]


def _of_percentile(values: Floats, ordered: Floats, share: float, cut: float) -> Interval:
    if ordered[0] == ordered[-1]:
        return float(cut), float(cut)
    half = _half_width((values <= cut).astype(np.float64))
    # of rare events that all fall into a few batches, and of a share that no batch changes
    half = max(half, 2 * math.sqrt(share * (1 - share) / len(values)))
    ends = [(len(ordered) - 1) * each for each in (share - half, share + half)]
    low = math.nan if ends[0] < 0 else float(ordered[math.floor(ends[0])])
    high = math.nan if ends[1] > len(ordered) - 1 else float(ordered[math.ceil(ends[1])])
    return low, high


def _half_width(values: Floats) -> float:
    """Half of the 95 % interval of the mean of a series."""
    widths = []
    for num_batches, student in _STUDENT.items():
        if len(values) >= 2 * num_batches:
            means = _batch_means(values, num_batches)
            widths.append(student * float(means.std(ddof=1)) / math.sqrt(num_batches))
    return max(widths)


def _batch_means(values: Floats, num_batches: int) -> npt.NDArray[np.float64]:
    """Means of consecutive batches; the values that do not fill a batch are left out at the start."""
    size = len(values) // num_batches
    return values[len(values) - size * num_batches :].reshape(num_batches, size).mean(axis=1)
