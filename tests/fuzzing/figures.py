"""What must hold of the files that a successful task leaves, whatever was asked for."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

LONGEST_MS = 1e12  # thirty years; on the slowest valid device a first token takes days
ROUNDING = 1e-9  # of a share that is an average over time
LARGEST_THROUGHPUT = 1e12  # tokens or requests per second
_SHARES = ("prefix_cache_hit_rate", "goodput_share", "mean_kv_cache_usage", "max_kv_cache_usage")
_MAY_BE_NEGATIVE = (
    "window_start_s", "window_end_s", "config", "settings", "environment", "error_pct", "bias_pct", "queue_growth",
)  # fmt: skip
_TIMES = ("arrival_time", "replay_lag", "first_scheduled_time", "first_token_time", "finish_time")
_LATENCIES = ("ttft", "tpot", "e2el", "queue_time")


def problems(folder: Path) -> Iterator[str]:
    """A line for each figure below `folder` that cannot be; the name of the figure comes first."""
    for name, check in _CHECKS.items():
        if (folder / name).is_file():
            yield from (f"{name}: {problem}" for problem in check(folder / name))


def _summary(path: Path) -> Iterator[str]:
    summary = json.loads(path.read_text(), parse_constant=_not_finite)
    yield from _negative(summary)
    for name in _SHARES:
        if summary[name] is not None and not 0 <= summary[name] <= 1 + ROUNDING:
            yield f"{name} is {summary[name]}, not a share"
    for name, value in summary.items():
        if name.endswith("_throughput") and value is not None and value > LARGEST_THROUGHPUT:
            yield f"{name} is absurd: {value}"
        if name.endswith(("ttft_ms", "tpot_ms", "itl_ms")) and value is not None and value > LONGEST_MS:
            yield f"{name} is absurd: {value}"
    if summary["completed"] + summary["failed"] != summary["num_prompts"]:
        yield "completed and failed are not num_prompts"
    if summary["completed"] and not (summary["mean_ttft_ms"] or 0) > 0:
        yield f"mean_ttft_ms is {summary['mean_ttft_ms']} although requests finished"
    if summary["mean_tpot_ms"] is not None and not summary["mean_tpot_ms"] > 0:
        yield f"mean_tpot_ms is {summary['mean_tpot_ms']}"
    if not summary["num_blocks"] >= 1:
        yield f"num_blocks is {summary['num_blocks']}"


def _requests(path: Path) -> Iterator[str]:
    table = pd.read_parquet(path)
    yield from _table(table, [*_TIMES, *_LATENCIES])
    finished = table[table["status"] == "finished"]
    if finished[["first_scheduled_time", "first_token_time", "finish_time", "ttft", "e2el"]].isna().any().any():
        yield "a finished request lacks a time"
    pairs = [("num_output_tokens", "num_requested_tokens"), ("num_cached_tokens", "num_prompt_tokens")]
    pairs += [("first_scheduled_time", "first_token_time"), ("first_token_time", "finish_time")]
    for less, more in pairs:
        if (table[less] > table[more]).any():
            yield f"{less} is above {more}"


def _steps(path: Path) -> Iterator[str]:
    table = pd.read_parquet(path)
    yield from _table(table, ["start_time", "duration"])
    if not table["start_time"].is_monotonic_increasing:
        yield "start_time falls"


def _gaps(path: Path) -> Iterator[str]:
    yield from _table(pd.read_parquet(path), ["value_s", "weight"])


def _table(table: pd.DataFrame, names: list[str]) -> Iterator[str]:
    counts = [name for name in table.columns if name.startswith("num_")]
    for name in [*names, *counts]:
        values = table[name].dropna().to_numpy(dtype=float)
        if (~(values >= 0) | (values == math.inf)).any():
            yield f"{name} holds a negative or infinite value"


def _document(path: Path) -> Iterator[str]:
    yield from _negative(
        json.loads(path.read_text(), parse_constant=_not_finite), "errors", "steps", "steps_of_repeats"
    )


def _calibration(path: Path) -> Iterator[str]:
    constants = yaml.safe_load(path.read_text())["constants"]
    for name, value in constants.items():
        if not 0 <= value < 1e6:
            yield f"{name} is {value}"


def _comparison(path: Path) -> Iterator[str]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if any(value in ("inf", "-inf", "nan") for value in row.values()):
                yield "a figure is not finite"


def _negative(value: Any, *left_out: str) -> Iterator[str]:
    """Names of numbers in a document that are below 0 or not finite."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        if name in _MAY_BE_NEGATIVE or name in left_out:
            continue
        if isinstance(item, (int, float)) and not item >= 0 or item == math.inf:
            yield f"{name} is {item}"
        yield from _negative(item)


def _not_finite(text: str) -> float:
    raise ValueError(f"{text} in a JSON file")


_CHECKS = {
    "summary.json": _summary,
    "requests.parquet": _requests,
    "steps.parquet": _steps,
    "gaps.parquet": _gaps,
    "validation.json": _document,
    "calibration.yaml": _calibration,
    "comparison.csv": _comparison,
}
