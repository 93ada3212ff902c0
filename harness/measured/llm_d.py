"""Reads the benchmark report of llm-d-benchmark (version 0.2, YAML or JSON), which has aggregates and no requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.documents import errors_as, read_yaml
from harness.errors import MeasuredRunError
from harness.measured.records import as_number

_LATENCIES = {"time_to_first_token": "ttft", "time_per_output_token": "tpot", "request_latency": "e2el"}
_RATES = {
    "request_rate": "request_throughput", "output_token_rate": "output_throughput",
    "total_token_rate": "total_token_throughput",
}  # fmt: skip
_STATISTIC = re.compile(r"p(\d+)(?:p(\d+))?")  # p99 and p99p9
_MILLISECONDS = {"s": 1e3, "ms": 1.0, "s/token": 1e3, "ms/token": 1.0}
_DURATION = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d*)?)S)?")


def read_aggregates(path: Path) -> dict[str, Any]:
    """The aggregates of a report by their names in the JSON of `vllm bench serve`.

    Raises:
        MeasuredRunError: the file cannot be read, or is no such report.
    """
    with errors_as(MeasuredRunError, path):
        report = read_yaml(path, numbers="any")
    found = _at(report, "results", "request_performance", "aggregate")
    if not found:
        raise MeasuredRunError(f"{path}: no results.request_performance.aggregate, as a benchmark report of llm-d has")
    requests = _at(found, "requests")
    completed = as_number(requests.get("total")) - _number_or_0(requests.get("failures"))
    document: dict[str, Any] = {"backend": "llm-d", "completed": completed}
    for name, key in (("input_length", "total_input_tokens"), ("output_length", "total_output_tokens")):
        document[key] = completed * as_number(_at(requests, name).get("mean"))
    for name, ours in _LATENCIES.items():
        document |= _latency(ours, _at(found, "latency", name))
    for name, ours in _RATES.items():
        document[ours] = _at(found, "throughput", name).get("mean")
    document["duration"] = _seconds(_at(report, "run", "time").get("duration"))
    load = _at(report, "scenario", "load", "standardized")
    return {**document, "request_rate": load.get("rate_qps"), "max_concurrency": load.get("concurrency")}


def _latency(name: str, statistics: Mapping[str, Any]) -> dict[str, float]:
    """The statistics in ms, such as median_ttft_ms for p50."""
    unit = _MILLISECONDS.get(str(statistics.get("units")))
    found: dict[str, float] = {}
    if unit is None:
        return found
    for key, value in statistics.items():
        percentile = _STATISTIC.fullmatch(str(key))
        if key == "p50":
            statistic = "median"
        elif percentile:
            statistic = f"p{percentile[1]}{f'.{percentile[2]}' if percentile[2] else ''}"
        elif key == "mean":
            statistic = "mean"
        else:
            continue
        found[f"{statistic}_{name}_ms"] = as_number(value) * unit
    return found


def _seconds(duration: Any) -> float | None:
    """Of a duration such as PT49.97S; None for anything else."""
    match = _DURATION.fullmatch(str(duration))
    return (
        sum(float(part or 0) * size for part, size in zip(match.groups(), (3600, 60, 1), strict=True))
        if match
        else None
    )


def _number_or_0(value: Any) -> float:
    return 0.0 if value is None else as_number(value)


def _at(document: Any, *keys: str) -> Mapping[str, Any]:
    """The object at the end of `keys`; an empty one where there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}
