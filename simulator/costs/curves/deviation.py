"""The time of decode attention of uneven contexts beyond that of even ones, interpolated in a profile's table.

    E(n, mean, v)    n decodes, the standard deviation of whose contexts is v times their mean

E is measured at a few v for some n and means, is 0 at v = 0, and keeps its last value beyond the table: kernels that
sort contexts into groups take time for each group, and even a small deviation makes several groups, a large one only
few more.
"""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

from simulator.costs.curves.curve import Curve, Surface, flat
from simulator.table import Table, groups


class _Row:
    """E of one number of decodes: a curve over the mean for each deviation, straight lines between them.

    A scalar and an array of the same contexts give bit-for-bit the same times.
    """

    def __init__(self, curves: dict[float, Curve]) -> None:
        self._levels = [0.0, *sorted(curves)]
        self._curves = [flat([1.0], [0.0]), *(curves[level] for level in self._levels[1:])]
        self._last = len(self._levels) - 1

    def __call__(self, mean: float, deviation: float) -> float:
        level = deviation / mean
        i = min(bisect.bisect_right(self._levels, level), self._last) - 1
        low, high = self._curves[i](mean), self._curves[i + 1](mean)
        share = min((level - self._levels[i]) / (self._levels[i + 1] - self._levels[i]), 1.0)
        return low + share * (high - low)

    def many(self, means: NDArray[np.float64], deviation: NDArray[np.float64] | float) -> NDArray[np.float64]:
        levels, measured = deviation / means, np.array(self._levels)
        i = np.minimum(measured.searchsorted(levels, side="right"), self._last) - 1
        times = np.array([curve.many(means) for curve in self._curves])
        steps = np.arange(len(means))
        low, high = times[i, steps], times[i + 1, steps]
        share = np.minimum((levels - measured[i]) / (measured[i + 1] - measured[i]), 1.0)
        result: NDArray[np.float64] = low + share * (high - low)
        return result


class DeviationBatch:
    """E of a batch between two measured rows."""

    def __init__(self, low: _Row, high: _Row, weight: float) -> None:
        self._low = low
        self._high = high
        self._weight = weight

    def __call__(self, mean: float, deviation: float) -> float:
        low = self._low(mean, deviation)
        return low + self._weight * (self._high(mean, deviation) - low) if self._weight else low

    def many(self, means: NDArray[np.float64], deviation: NDArray[np.float64] | float) -> NDArray[np.float64]:
        low = self._low.many(means, deviation)
        return low + self._weight * (self._high.many(means, deviation) - low) if self._weight else low


class DeviationCost:
    """E of all layers in ns, from the deviations table of a profile.

    Args:
        table: num_decodes, decode_context, deviation_pct and time_us of one layer.
        decode: decode attention of even contexts in all layers, ns.
        layers_ns: ns of all layers per us of one.
    """

    def __init__(self, table: Table, decode: Surface, layers_ns: float) -> None:
        points = zip(table["num_decodes"].tolist(), table["decode_context"].tolist(), strict=True)
        even = [decode.at(n)(mean) for n, mean in points]
        table = table.assign(extra=table["time_us"] * layers_ns - np.array(even))
        self._rows = {
            n: _Row(
                {
                    percent / 100: flat(group["decode_context"].tolist(), group["extra"].tolist())
                    for percent, group in groups(row, "deviation_pct")
                }
            )
            for n, row in groups(table, "num_decodes")
        }
        self._batches: dict[int, DeviationBatch] = {}
        self._brackets = Surface(dict.fromkeys(map(float, self._rows), ([0.0], [0.0])), None)

    def at(self, num_decodes: int) -> DeviationBatch | None:
        """E of a batch; None of a single decode."""
        if num_decodes < 2:
            return None
        batch = self._batches.get(num_decodes)
        if batch is None:
            low, high, weight = self._brackets.bracket(num_decodes)
            batch = self._batches[num_decodes] = DeviationBatch(self._rows[int(low)], self._rows[int(high)], weight)
        return batch
