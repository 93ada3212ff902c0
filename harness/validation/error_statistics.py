"""Statistics of a measured run and of its simulation, errors between them, and the noise floor of repeated runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.config.schema.tasks.validation import Part
from harness.errors import ConfigError
from harness.results.statistics.latencies import LATENCIES
from harness.results.tables import Floats

STATISTICS = ("mean", "median", "p90", "p95", "p99")
PER_REQUEST = ("ttft", "e2el")  # latencies whose error is also taken request by request
REQUEST_STATISTICS = ("request_mape", "request_p99")  # mean and 99th percentile of each request's absolute error
UNITS = {
    **dict.fromkeys(LATENCIES, "ms"),
    "duration": "s",
    "request_throughput": "1/s",
    "output_throughput": "tok/s",
    "total_token_throughput": "tok/s",
    "preemptions": "",
    "preempted_requests": "",
    "cached_tokens": "",
    "prefix_cache_hit_rate": "share",
}
PARTS = {
    "first_half": "first half of the requests",
    "second_half": "second half of the requests",
    "fitted": "fitted loads",
    "held_out": "held-out load",
}
Values = Mapping[tuple[str, str], float]


def part_of(requests: pd.DataFrame, part: Part) -> npt.NDArray[np.int64]:
    """The rows of a part of `requests`, which have the columns of `MeasuredRun.requests`.

    Raises:
        ConfigError: `part` is one of loads, and task=observe did not measure the run.
    """
    rows = np.arange(len(requests))
    if part in ("fitted", "held_out"):
        if "held_out" not in requests:
            raise ConfigError(f"{part}: this run has no loads to tell apart; those that task=observe measured have")
        return rows[requests["held_out"].to_numpy() == (part == "held_out")]
    half = len(requests) // 2
    return {"all": rows, "first_half": rows[:half], "second_half": rows[half:]}[part]


def is_in_part(times: Floats, arrivals: Floats, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether the last request that had arrived at each time is one of `rows`; before the first one, that is meant."""
    last = np.searchsorted(arrivals, times, side="right") - 1
    return np.isin(np.maximum(last, 0), rows)


def statistics(requests: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Values by metric and statistic over the finished requests; NaN where the table lacks the data.

    Latencies are in ms; the duration is in s, from the first arrival to the last token. It and throughputs are unknown
    of slices of several loads. `requests` has the columns of
    `MeasuredRun.requests`.
    """
    finished = requests[(requests["status"] == "finished").to_numpy()]
    out: dict[tuple[str, str], float] = {}
    for name in LATENCIES:
        found = latency_statistics(finished[name].to_numpy(dtype=np.float64) * 1e3)
        out |= {(name, key): value for key, value in zip(STATISTICS, found, strict=True)}
    return out | ({} if "slice" in requests else _throughput(finished)) | _decisions(finished)


def latency_statistics(values: Floats) -> list[float]:
    """The `STATISTICS` of values, of which those that are NaN are left out; NaN without any."""
    values = values[~np.isnan(values)]
    if not len(values):
        return [math.nan] * len(STATISTICS)
    return [float(values.mean()), *np.percentile(values, [50, 90, 95, 99]).tolist()]


def comparison(measured: Values, simulated: Values, repeats: Sequence[Values] = ()) -> pd.DataFrame:
    """One row per measured statistic: metric, statistic, unit, measured, simulated, error_pct, noise_floor_pct.

    `measured` is the median over the run and its `repeats`. error_pct is 100 (simulated -
    measured) / measured, NaN where that is undefined. noise_floor_pct is the largest deviation of a measured run from
    `measured`; NaN without repeats, and where `measured` is 0 and a repeat is not.
    """
    rows = []
    for (metric, statistic), value in measured.items():
        if math.isnan(value):
            continue
        predicted = simulated.get((metric, statistic), math.nan)
        runs = np.array([value, *(each.get((metric, statistic), math.nan) for each in repeats)])
        middle = float(np.median(runs))
        deviations = np.abs([_percent(run, middle) for run in runs.tolist()])
        rows.append(
            {
                "metric": metric,
                "statistic": statistic,
                "unit": UNITS[metric],
                "measured": middle,
                "simulated": predicted,
                "error_pct": _percent(predicted, middle),
                "noise_floor_pct": float(deviations.max()) if repeats else math.nan,  # NaN if a deviation is NaN
            }
        )
    return pd.DataFrame(rows)


def with_request_errors(
    errors: pd.DataFrame, measured: pd.DataFrame, simulated: pd.DataFrame, repeats: Sequence[pd.DataFrame] = ()
) -> pd.DataFrame:
    """`errors`, as of `comparison`, with the rows `REQUEST_STATISTICS` after those of each latency of `PER_REQUEST`.

    Their error_pct is that of single requests, taken absolutely, so that errors of opposite sign do not cancel out as
    in aggregates. Their noise_floor_pct is the largest such error of a repeat against `measured`. The tables have the
    same requests in the same order, as `MeasuredRun.requests`.
    """
    groups = []
    for metric, rows in errors.groupby("metric", sort=False):
        groups.append(rows)
        if metric in PER_REQUEST:
            found, *others = (_request_errors(measured, each, str(metric)) for each in (simulated, *repeats))
            noise = np.max(others, axis=0) if others else np.full(len(found), math.nan)
            names = {"metric": metric, "unit": UNITS[str(metric)], "measured": math.nan, "simulated": math.nan}
            for statistic, error, floor in zip(REQUEST_STATISTICS, found, noise.tolist(), strict=True):
                values = {**names, "statistic": statistic, "error_pct": error, "noise_floor_pct": floor}
                groups.append(pd.DataFrame([values])[errors.columns])
    return pd.concat(groups, ignore_index=True)


def _request_errors(measured: pd.DataFrame, other: pd.DataFrame, metric: str) -> list[float]:
    """`REQUEST_STATISTICS` of a latency over the requests that finished in both tables, in percent."""
    reference, value = (table[metric].to_numpy(dtype=np.float64) for table in (measured, other))
    finished = [(table["status"] == "finished").to_numpy() for table in (measured, other)]
    known = finished[0] & finished[1] & (reference > 0) & ~np.isnan(value)
    if not known.any():
        return [math.nan, math.nan]
    errors = 100 * np.abs(value[known] / reference[known] - 1)
    return [float(errors.mean()), float(np.percentile(errors, 99))]


def align(measured: pd.DataFrame, simulated: pd.DataFrame) -> dict[str, dict[str, float]]:
    """For each measured level over time: its measured mean, its simulated mean, and the mean absolute difference.

    Both tables are as `MeasuredRun.series`, with the same times.
    """
    out = {}
    for name in measured.columns.drop("time"):
        of_run, of_simulation = measured[name].to_numpy(), simulated[name].to_numpy()
        if len(of_run) and not np.isnan(of_run).any():
            out[str(name)] = {
                "mean_measured": float(of_run.mean()),
                "mean_simulated": float(of_simulation.mean()),
                "mean_abs_difference": float(np.abs(of_simulation - of_run).mean()),
            }
    return out


def _throughput(finished: pd.DataFrame) -> dict[tuple[str, str], float]:
    if finished.empty:
        return {}
    duration = float(finished["finish_time"].max() - finished["arrival_time"].min())
    outputs = int(finished["num_output_tokens"].sum())
    tokens = outputs + int(finished["num_prompt_tokens"].sum())
    per_s = {"request_throughput": len(finished), "output_throughput": outputs, "total_token_throughput": tokens}
    return {("duration", "total"): duration} | {
        (name, "mean"): _ratio(count, duration) for name, count in per_s.items()
    }


def _decisions(finished: pd.DataFrame) -> dict[tuple[str, str], float]:
    preemptions = finished["num_preemptions"].to_numpy(dtype=np.float64)
    cached = float(finished["num_cached_tokens"].sum(skipna=False))
    return {
        ("preemptions", "total"): float(preemptions.sum()),
        ("preempted_requests", "total"): math.nan if np.isnan(preemptions).any() else float((preemptions > 0).sum()),
        ("cached_tokens", "total"): cached,
        ("prefix_cache_hit_rate", "mean"): _ratio(cached, float(finished["num_prompt_tokens"].sum())),
    }


def _percent(value: float, reference: float) -> float:
    if value == reference:
        return 0.0
    return 100 * (value - reference) / reference if reference else math.nan


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan
