"""Reads the requests that load generators and logs record one by one, each of a server's answer as its client saw it.

    guidellm      the JSON of GuideLLM (schema version 2): the successful requests of all its benchmarks, one run
    aiperf        profile_export.jsonl of AIPerf: the requests of its profiling phase
    csv           any table with a row per request, whose columns are named as those of requests.parquet, or as
                  validation.columns says; times are in s, and in ms in a column whose name ends in _ms

A request arrives when its client sent it. The last token is the end of a request where a format has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import MeasuredRunError
from harness.measured.measured_run import MeasuredRun, check_order, requests_table, series_table, trace_of
from harness.measured.records import check_lengths, number_columns, read_json, read_json_lines, read_text
from harness.results.tables import Floats
from harness.workload.rows.sieve import MAX_BAD_SHARE

_LENGTHS = ("num_prompt_tokens", "num_output_tokens")
_COLUMNS = ("arrival_time", "first_token_time", "finish_time", *_LENGTHS)
_DURATIONS = {"first_token_time": "ttft", "finish_time": "e2el"}  # from the arrival, in place of times
_GUIDELLM = dict(zip(_COLUMNS, ("request_start", "first_token_iteration", "last_token_iteration", "prompt_tokens",
                                "output_tokens"), strict=True))  # fmt: skip
_AIPERF = ("time_to_first_token", "request_latency", "input_sequence_length", "output_sequence_length")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "tokens": 1.0}


def read_guidellm(path: Path) -> MeasuredRun:
    """Raises MeasuredRunError: it is no such file, or more than a few requests failed."""
    document = read_json(path)
    benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(benchmarks, list) or not all(isinstance(each, dict) for each in benchmarks):
        raise MeasuredRunError(f"{path}: no list benchmarks, as GuideLLM writes with --output kind=json")
    records, failed = [], 0
    for each in benchmarks:
        requests = each.get("requests")
        kinds = requests if isinstance(requests, dict) else {}
        failed += len(kinds.get("errored") or ()) + len(kinds.get("incomplete") or ())
        for request in kinds.get("successful") or ():
            timings = _part(_part(request, "info"), "timings")
            records.append({ours: _part(request).get(name, timings.get(name)) for ours, name in _GUIDELLM.items()})
    return _run("guidellm", path, "a server, by GuideLLM", number_columns(path, records, _COLUMNS), failed)


def read_aiperf(path: Path) -> MeasuredRun:
    """Raises MeasuredRunError: it is no such file, or more than a few requests failed."""
    lines = [each for each in read_json_lines(path) if _part(each, "metadata").get("benchmark_phase") != "warmup"]
    served = [each for each in lines if each.get("error") is None]
    starts = [_part(each, "metadata").get("request_start_ns") for each in served]
    origin = min((start for start in starts if type(start) is int), default=0)
    records = [
        {
            "request_start_ns": (start - origin) * 1e-9 if type(start) is int else None,
            **{name: _value(_part(each, "metrics").get(name)) for name in _AIPERF},
        }
        for start, each in zip(starts, served, strict=True)
    ]
    found = number_columns(path, records, ("request_start_ns", *_AIPERF))
    arrival, ttft, e2el, *lengths = found.values()
    columns = dict(zip(_COLUMNS, (arrival, arrival + ttft, arrival + e2el, *lengths), strict=True))
    return _run("aiperf", path, "a server, by AIPerf", columns, len(lines) - len(served))


def read_csv(path: Path, names: Mapping[str, str]) -> MeasuredRun:
    """`names` are the columns of the file by our names.

    Raises:
        MeasuredRunError: it is no such file, or lacks a column; a request of a row is not whole.
    """
    read_text(path)
    try:
        table = pd.read_csv(path, skipinitialspace=True)
    except (ValueError, OSError) as error:
        raise MeasuredRunError(f"{path}: not a CSV file: {' '.join(str(error).split())}") from None
    columns: dict[str, Floats] = {}
    for name in _COLUMNS:
        duration = _DURATIONS.get(name)
        found = _column(path, table, names, name, needed=duration is None)
        if found is None and duration is not None:
            found = _column(path, table, names, duration, needed=False)
            if found is None:
                there = ", ".join(map(str, table.columns))
                raise MeasuredRunError(
                    f"{path}: no column {name} or {duration}; there are {there}; see validation.columns"
                )
            found = columns["arrival_time"] + found
        assert found is not None
        columns[name] = found
    return _run("csv", path, "a server, by its log", columns, 0)


def _column(path: Path, table: pd.DataFrame, names: Mapping[str, str], name: str, *, needed: bool) -> Floats | None:
    """A column in s or tokens, of numbers only."""
    own = names.get(name) or next((each for each in (name, f"{name}_ms") if each in table), None)
    if own is None or own not in table:
        if not needed and name not in names:
            return None
        there = ", ".join(map(str, table.columns))
        raise MeasuredRunError(f"{path}: no column {own or name}; there are {there}; see validation.columns")
    values = pd.to_numeric(table[own], errors="coerce").to_numpy(dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise MeasuredRunError(f"{path}: {own} of request {bad[0] + 1} is no number")
    return values * 1e-3 if own.endswith("_ms") else values


def _run(kind: str, path: Path, engine: str, columns: Mapping[str, Floats], failed: int) -> MeasuredRun:
    total = len(columns["arrival_time"]) + failed
    notes = ["prompts have no contents here: the simulated prefix cache finds nothing"]
    if failed:
        text = f"{failed} of {total} requests failed"
        if failed > max(1, MAX_BAD_SHARE * total):
            raise MeasuredRunError(f"{path}: {text}")
        notes.append(f"{text}; they are left out, and the server had them beside the others")
    check_lengths(path, columns, _LENGTHS)
    requests = requests_table(columns)
    check_order(path, requests)
    trace = trace_of(path.stem, str(path), requests)
    return MeasuredRun(kind, str(path), engine, (path,), trace, requests, series_table({}), notes=tuple(notes))


def _part(value: Any, name: str | None = None) -> Mapping[str, Any]:
    """The object under a name, or the value itself; empty where it is none."""
    found = value.get(name) if name is not None and isinstance(value, dict) else value if name is None else None
    return found if isinstance(found, dict) else {}


def _value(metric: Any) -> Any:
    """A number in s or tokens of AIPerf's {"value": ..., "unit": ...}."""
    value, unit = (metric.get("value"), metric.get("unit")) if isinstance(metric, dict) else (None, None)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) * _SECONDS[unit] if is_number and unit in _SECONDS else None  # type: ignore[arg-type]
