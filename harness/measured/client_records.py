"""Reads the requests that load generators and logs record one by one, each of a server's answer as its client saw it.

    guidellm      the JSON of GuideLLM (schema version 2): the successful requests of all its benchmarks, one run
    aiperf        profile_export.jsonl of AIPerf: the requests of its profiling phase
    inference_perf  per_request_lifecycle_metrics.json of inference-perf (report.request_lifecycle.per_request)
    csv           any table with a row per request, whose columns are named as those of requests.parquet, or as
                  validation.columns says; times are in s, but in ms where the file's name of a column ends in _ms

A request arrives when its client sent it. The last token is the end of a request where a format has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import MeasuredRunError
from harness.measured.measured_run import MeasuredRun, check_order, requests_table, series_table, trace_of
from harness.measured.records import MAX_NUMBER, check_lengths, number_columns, read_json, read_json_lines, read_text
from harness.results.tables import Floats
from harness.workload.rows.sieve import MAX_BAD_SHARE
from harness.workload.rows.value_checks import as_floats

_LENGTHS = ("num_prompt_tokens", "num_output_tokens")
_COLUMNS = ("arrival_time", "first_token_time", "finish_time", *_LENGTHS)
_LONGEST_LIST = 400  # characters of a message
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
        requests = _object(each.get("requests"))
        failed += len(_list(requests.get("errored"))) + len(_list(requests.get("incomplete")))
        for request in map(_object, _list(requests.get("successful"))):
            timings = _object(_object(request.get("info")).get("timings"))
            records.append({ours: request.get(name, timings.get(name)) for ours, name in _GUIDELLM.items()})
    return _run("guidellm", path, "a server, by GuideLLM", number_columns(path, records, _COLUMNS), failed)


def read_aiperf(path: Path) -> MeasuredRun:
    """Raises MeasuredRunError: it is no such file, or more than a few requests failed."""
    lines = [each for each in read_json_lines(path) if _object(each.get("metadata")).get("benchmark_phase") != "warmup"]
    served = [each for each in lines if each.get("error") is None]
    starts = [_object(each.get("metadata")).get("request_start_ns") for each in served]
    origin = min((start for start in starts if type(start) is int), default=0)
    records = [
        {
            "request_start_ns": (start - origin) * 1e-9 if type(start) is int else None,
            **{name: _value(_object(each.get("metrics")).get(name)) for name in _AIPERF},
        }
        for start, each in zip(starts, served, strict=True)
    ]
    found = number_columns(path, records, ("request_start_ns", *_AIPERF))
    arrival, ttft, e2el, *lengths = found.values()
    columns = dict(zip(_COLUMNS, (arrival, arrival + ttft, arrival + e2el, *lengths), strict=True))
    return _run("aiperf", path, "a server, by AIPerf", columns, len(lines) - len(served))


def read_inference_perf(path: Path) -> MeasuredRun:
    """Raises MeasuredRunError: it is no such file, answers were not streamed, or more than a few requests failed."""
    document = read_json(path)
    if not isinstance(document, list) or not all(isinstance(each, dict) and "info" in each for each in document):
        raise MeasuredRunError(
            f"{path}: no list of requests with info, as inference-perf writes with per_request: true"
        )
    served = [each for each in document if not each.get("error")]
    records = []
    for each in served:
        info = _object(each["info"])
        response = _object(info.get("response_metrics")) or info  # versions before 0.3 have it beside input_tokens
        usage = _object(response.get("server_usage"))
        times = _list(response.get("output_token_times")) or _list(response.get("chunk_times"))
        ends = [times[0], times[-1]] if times else [None, None]
        lengths = [usage.get("prompt_tokens", info.get("input_tokens")), response.get("output_tokens")]
        lengths[1] = usage.get("completion_tokens", lengths[1])
        records.append(dict(zip(_COLUMNS, (each.get("start_time"), *ends, *lengths), strict=True)))
    columns = number_columns(path, records, _COLUMNS)
    return _run("inference_perf", path, "a server, by inference-perf", columns, len(document) - len(served))


def read_csv(path: Path, names: Mapping[str, str]) -> MeasuredRun:
    """`names` are ours by those of the file, where they differ.

    Raises:
        MeasuredRunError: it is no such file, or lacks a column; a request of a row is not whole.
    """
    try:
        table = pd.read_csv(StringIO(read_text(path)), skipinitialspace=True)
    except (ValueError, OverflowError) as error:
        raise MeasuredRunError(f"{path}: not a CSV file: {' '.join(str(error).split())}") from None
    listed = ", ".join(map(str, table.columns))
    listed = listed if len(listed) <= _LONGEST_LIST else f"{listed[:_LONGEST_LIST]} ..."
    there = f"there are {listed}; see validation.columns"
    if absent := [name for name in names if name not in table]:
        raise MeasuredRunError(f"{path}: no column {absent[0]}; {there}")
    own_names = {name.removesuffix("_ms"): name for name in map(str, table)} | {names[own]: own for own in names}
    columns: dict[str, Floats] = {}
    for name in _COLUMNS:
        duration = _DURATIONS.get(name)
        if name in own_names:
            columns[name] = _numbers(path, table, own_names[name])
        elif duration and duration in own_names:
            columns[name] = columns["arrival_time"] + _numbers(path, table, own_names[duration])
        else:
            raise MeasuredRunError(f"{path}: no column {name}{f' or {duration}' if duration else ''}; {there}")
    return _run("csv", path, "a server, by its log", columns, 0)


def _numbers(path: Path, table: pd.DataFrame, name: str) -> Floats:
    """A column in s or tokens."""
    values = as_floats(table[name])
    bad = np.flatnonzero(~(np.abs(values) <= MAX_NUMBER))
    if len(bad):
        raise MeasuredRunError(f"{path}: {name} of request {bad[0] + 1} is no number")
    return values * 1e-3 if name.endswith("_ms") else values


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


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _value(metric: Any) -> Any:
    """A number in s or tokens of AIPerf's {"value": ..., "unit": ...}."""
    value, unit = (metric.get("value"), metric.get("unit")) if isinstance(metric, dict) else (None, None)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) * _SECONDS[unit] if is_number and unit in _SECONDS else None  # type: ignore[arg-type]
