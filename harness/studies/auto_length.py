"""`trace.num_requests=auto`: how long a run must be, found by ever longer runs of the same draws.

Each run has twice the requests of the one before, which are its first ones. It ends when the 95 % interval of the
metric asked for is narrow enough, when the run is overloaded for certain, or at the largest number of requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from harness.config import IntervalConfig, RunConfig
from harness.config.schema.traffic.workload import AUTO_REQUESTS
from harness.workload.trace import Trace

_FIRST = 1000
_CERTAIN = 2000  # requests from which the verdict is trusted to end the search


class Decision(NamedTuple):
    """Whether a run is long enough, and why."""

    is_enough: bool
    reason: str


def is_open(config: RunConfig) -> bool:
    """Whether the number of requests is left open."""
    return getattr(config.trace, "num_requests", None) == AUTO_REQUESTS


def with_most_requests(config: RunConfig) -> RunConfig:
    """The configuration with the largest number of requests in place of `auto`."""
    trace = config.trace.model_copy(update={"num_requests": config.metrics.interval.max_requests})
    return config.model_copy(update={"trace": trace})


def reporting_the_metric(config: RunConfig) -> RunConfig:
    """The configuration with the percentile of the metric among those reported, and without plots."""
    metrics = config.metrics
    statistic = metrics.interval.metric.partition("_")[0]
    if statistic.startswith("p"):
        percentiles = tuple(dict.fromkeys((*metrics.percentiles, float(statistic[1:]))))
        metrics = metrics.model_copy(update={"percentiles": percentiles})
    return config.model_copy(update={"metrics": metrics, "plots": False})


def first_requests(trace: Trace) -> Iterator[Trace]:
    """The first 1,000 requests of a trace, then twice as many each time, at last all."""
    num_requests = _FIRST
    while num_requests < len(trace.rows):
        yield replace(trace, rows=trace.rows[:num_requests])
        num_requests *= 2
    yield trace


def decide(summary: Mapping[str, Any], interval: IntervalConfig) -> Decision:
    """Whether the run of `summary` knows the metric well enough."""
    value, low, high = (summary.get(f"{interval.metric}_ms{end}") for end in ("", "_low", "_high"))
    num_requests = summary["num_prompts"]
    head = f"{num_requests:,} requests:"
    if summary["verdict"] == "overloaded" and num_requests >= _CERTAIN:
        return Decision(True, f"{head} overloaded, so {interval.metric} grows with the run")
    if not value or low is None or high is None:
        return Decision(False, f"{head} too few to know {interval.metric}")
    half = (high - low) / 2 / value
    is_narrow = half <= interval.width
    asked = "enough" if is_narrow else f"{interval.width:.0%} is asked for"
    return Decision(is_narrow, f"{head} {interval.metric} is known to ±{half:.1%}, {asked}")
