"""The comparison of a simulated run with the measured one: statistics of both, errors, and the noise of repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from harness.config.validation import Part

LATENCIES = ("ttft", "tpot", "e2el", "queue_time")
STATISTICS = ("mean", "median", "p90", "p95", "p99")
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
Values = Mapping[tuple[str, str], float]


def part_of(num_requests: int, part: Part) -> slice:
    """The rows, in order of arrival, of a part of the requests."""
    half = num_requests // 2
    return {"all": slice(None), "first_half": slice(half), "second_half": slice(half, None)}[part]


def statistics(requests: pd.DataFrame) -> dict[tuple[str, str], float]:
    """By metric and statistic, of the finished among some requests; NaN what is not known of them.

    Latencies in ms, duration in s from the first arrival to the last token. `requests` has the columns of
    `MeasuredRun.requests`.
    """
    finished = requests[(requests["status"] == "finished").to_numpy()]
    out: dict[tuple[str, str], float] = {}
    for name in LATENCIES:
        values = finished[name].dropna().to_numpy(dtype=np.float64) * 1e3
        cuts = np.percentile(values, [50, 90, 95, 99]) if len(values) else np.full(4, math.nan)
        mean = float(values.mean()) if len(values) else math.nan
        out |= {(name, key): value for key, value in zip(STATISTICS, [mean, *cuts.tolist()], strict=True)}
    return out | _throughput(finished) | _decisions(finished)


def comparison(
    measured: Values, simulated: Values, repeats: Sequence[Values] = (), *, are_parts: bool = False
) -> pd.DataFrame:
    """One row per statistic that was measured, with both values, the error and the noise.

    Columns: metric, statistic, unit, measured, simulated, error_pct, noise_floor_pct. `measured` is the median of the
    run and its `repeats`, or if these are parts of its measurements that of the run. error_pct = 100 (simulated -
    measured) / measured, NaN where nothing was measured to compare to. noise_floor_pct is the largest deviation of a
    measured run from `measured`; NaN without repeats, and where one deviates from 0.
    """
    rows = []
    for (metric, statistic), value in measured.items():
        if math.isnan(value):
            continue
        ours = simulated.get((metric, statistic), math.nan)
        runs = np.array([value, *(each.get((metric, statistic), math.nan) for each in repeats)])
        middle = value if are_parts else float(np.median(runs))
        deviations = np.abs([_percent(run, middle) for run in runs.tolist()])
        rows.append(
            {
                "metric": metric,
                "statistic": statistic,
                "unit": UNITS[metric],
                "measured": middle,
                "simulated": ours,
                "error_pct": _percent(ours, middle),
                "noise_floor_pct": float(deviations.max()) if repeats else math.nan,  # NaN if any is
            }
        )
    return pd.DataFrame(rows)


def align(measured: pd.DataFrame, simulated: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Per level that was measured over time: its mean measured and simulated, and their mean absolute difference.

    Both are `MeasuredRun.series` with the same times.
    """
    out = {}
    for name in measured.columns.drop("time"):
        ours, theirs = simulated[name].to_numpy(), measured[name].to_numpy()
        if len(theirs) and not np.isnan(theirs).any():
            out[str(name)] = {
                "mean_measured": float(theirs.mean()),
                "mean_simulated": float(ours.mean()),
                "mean_abs_difference": float(np.abs(ours - theirs).mean()),
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
