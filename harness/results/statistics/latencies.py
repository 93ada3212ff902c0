"""Latencies of a run: means, standard deviations and percentiles, and 95 % intervals of those of requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from harness.results.columns import floats
from harness.results.statistics import intervals
from harness.results.statistics.queue_noise import QueueNoise, queue_noise
from harness.results.tables import Floats, Gaps, Rows, percentiles_of

LATENCIES = ("ttft", "tpot", "e2el", "queue_time")
_WITH_INTERVALS = ("ttft", "tpot", "e2el")
# By how much the share of requests below a percentile changes with the share that waits: that of TPOT and E2EL depends
# on the lengths of requests as much.
_EFFECT_OF_QUEUE = {"ttft": 1.0, "tpot": 0.5, "e2el": 0.5}


def latencies(finished: Rows, gaps: Gaps, percentiles: Sequence[float], load: float) -> dict[str, float]:
    """Statistics in ms of the finished requests and of all gaps between tokens, named as in `vllm bench serve`.

    `<statistic>_low` and `<statistic>_high` are the ends of the 95 % interval (`harness.results.statistics.intervals`).
    load: the offered load as a share of capacity, NaN where it is not known.
    """
    order = np.argsort(floats(finished, "arrival_time"), kind="stable")
    finished = finished[["arrival_time", *LATENCIES]].iloc[order]
    arrival, e2el = floats(finished, "arrival_time"), floats(finished, "e2el")
    settled = intervals.settled(arrival, e2el)
    noise = queue_noise(load, arrival, e2el - floats(finished, "queue_time"))
    out: dict[str, float] = {}
    for name in LATENCIES:
        every = floats(finished, name)
        seconds = every[~np.isnan(every)]
        if len(seconds):
            cuts = percentiles_of(seconds, [50, *percentiles])
            out |= _statistics(name, float(seconds.mean()), float(seconds.std()), cuts, percentiles)
        else:
            nothing = np.full(len(percentiles) + 1, math.nan)
            out |= _statistics(name, math.nan, math.nan, nothing, percentiles)
        if name in _WITH_INTERVALS:
            out |= _intervals(name, every[settled & ~np.isnan(every)], percentiles, out, noise)
    return out | _statistics("itl", gaps.mean(), gaps.std(), gaps.percentiles([50, *percentiles]), percentiles)


def percentile_name(percentile: float) -> str:
    """How a percentile is called in the names of statistics: p99, p99.9."""
    return f"p{int(percentile) if float(percentile).is_integer() else percentile}"


def _statistics(name: str, mean: float, std: float, cuts: Floats, percentiles: Sequence[float]) -> dict[str, float]:
    """From seconds; `cuts` holds the median and then the percentiles."""
    seconds = {"mean": mean, "std": std, "median": float(cuts[0])}
    for percentile, cut in zip(percentiles, cuts[1:], strict=True):
        seconds[percentile_name(percentile)] = float(cut)
    return {f"{statistic}_{name}_ms": value * 1e3 for statistic, value in seconds.items()}


def _intervals(
    name: str, seconds: Floats, percentiles: Sequence[float], found: Mapping[str, float], noise: QueueNoise
) -> dict[str, float]:
    """The ends of the intervals, from the `seconds` of settled requests; the values `found` of all lie within."""
    effect, num_requests = _EFFECT_OF_QUEUE[name], max(len(seconds), 1)
    median, *others = intervals.of_percentiles(
        seconds, [50, *percentiles], lambda share: effect * noise.of_share(share, num_requests)
    )
    waits = name != "tpot"  # decodes do not wait in the queue
    of = {"mean": intervals.of_mean(seconds, noise.of_mean(num_requests) if waits else 0.0), "median": median}
    for percentile, interval in zip(percentiles, others, strict=True):
        of[percentile_name(percentile)] = interval
    out = {}
    for statistic, (low, high) in of.items():
        key = f"{statistic}_{name}_ms"
        out[f"{key}_low"] = float(np.minimum(low * 1e3, found[key]))
        out[f"{key}_high"] = float(np.maximum(high * 1e3, found[key]))
    return out
