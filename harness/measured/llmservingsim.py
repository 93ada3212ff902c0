"""Reads vLLM runs in the format of LLMServingSim's `bench`: a folder with requests.jsonl, timeseries.csv, meta.json.

requests.jsonl has two clocks. `arrival_time`, when the client sent the request, is in the client's wall clock;
`queued_ts`, `scheduled_ts`, `first_token_ts` and `last_token_ts` are in the monotonic clock of the engine core. The
engine receives requests between two steps, so queued_ts - arrival_time is the offset of the clocks plus a wait of up to
one step. The smallest difference over all requests counts as the offset, so the fastest delivery counts as instant.

LLMServingSim's own summary counts TTFT and latency from `queued_ts`: with `latency_from=queued` its vLLM column is
reproduced to the last digit, with `latency_from=arrival` it is not.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import MeasuredRunError
from harness.measured.engine_settings import check_parallelism, logged_pool
from harness.measured.measured_run import (
    MAX_SPAN_S,
    MeasuredRun,
    check_order,
    requests_table,
    series_table,
    trace_of,
)
from harness.measured.records import check_lengths, number_columns, read_json, read_json_lines, read_text

_FIELDS = (
    "input_toks", "output_toks", "arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts",
)  # fmt: skip
_PARTS = ("engine_kwargs", "resolved_config", "kv_cache", "hardware")
_COUNTS = ("num_kv_tokens", "num_gpu_blocks", "block_size", "memory_bytes")
_SERIES = ("t", "running", "waiting", "kv_cache_pct")


def read(path: Path, workload: Path | None) -> MeasuredRun:
    """Read the folder `path`; `workload` is the replayed JSON-lines file, which has the prompts' tokens.

    Raises:
        MeasuredRunError: a file is missing or unreadable, a request failed, or the workload is of another run.
    """
    if not path.is_dir():
        raise MeasuredRunError(f"{path}: no such folder; llmservingsim:<folder> holds requests.jsonl and meta.json")
    file = path / "requests.jsonl"
    records = read_json_lines(file)
    _check_ids(file, records)
    fields = number_columns(file, records, _FIELDS)
    check_lengths(file, fields, _FIELDS[:2])
    offset = float((fields["queued_ts"] - fields["arrival_time"]).min())
    requests = requests_table(
        {
            "arrival_time": fields["arrival_time"] + offset,
            "queued_time": fields["queued_ts"],
            "first_scheduled_time": fields["scheduled_ts"],
            "first_token_time": fields["first_token_ts"],
            "finish_time": fields["last_token_ts"],
            "num_prompt_tokens": fields["input_toks"],
            "num_output_tokens": fields["output_toks"],
        }
    )
    check_order(file, requests)
    meta = read_json(path / "meta.json")
    settings, kv_cache, hardware = _told(path / "meta.json", meta)
    check_parallelism(path / "meta.json", settings)
    tokens = None if workload is None else _tokens(workload, requests)
    notes = [f"clocks: engine - client = {offset:.6f} s, the least queued_ts - arrival_time of all requests"]
    if tokens is None:
        notes.append("no validation.workload: prompts have no contents, so the simulated prefix cache finds nothing")
    series, more = _series(path / "timeseries.csv", meta, float(fields["arrival_time"].min()))
    return MeasuredRun(
        kind="llmservingsim",
        source=str(path),
        engine=f"vLLM {meta.get('vllm_version', 'of unknown version')}",
        data_files=(file,),
        trace=trace_of(path.name, str(path), requests, tokens),
        requests=requests,
        series=series,
        settings=settings,
        notes=(*notes, *more),
        kv_tokens=kv_cache.get("num_kv_tokens") or logged_pool({**kv_cache, **settings}, list(path.glob("*.log"))),
        memory_bytes=hardware.get("memory_bytes"),
    )


def _told(file: Path, meta: Any) -> tuple[dict[str, Any], dict[str, int], dict[str, int]]:
    """What meta.json tells: the settings of the engine, of which given ones outrank those that it resolved; the counts
    of `kv_cache`; and those of `hardware`.

    Raises:
        MeasuredRunError: a part of it is no JSON object, or a count no number above 0.
    """
    parts = [meta, *(meta.get(name) or {} for name in _PARTS)] if isinstance(meta, dict) else [meta]
    if not all(isinstance(part, dict) for part in parts):
        raise MeasuredRunError(f"{file}: it, or one of {', '.join(_PARTS)} in it, is not a JSON object")
    _, given, resolved, kv_cache, hardware = parts
    settings = {
        "model": meta.get("model"),
        **resolved,
        **{key: each for key, each in given.items() if each is not None},
    }
    counts = ({key: part[key] for key in _COUNTS if part.get(key) is not None} for part in (kv_cache, hardware))
    pool, device = counts
    for key, value in (pool | device).items():
        if type(value) is not int or not 0 < value < 1 << 50:
            raise MeasuredRunError(f"{file}: {key}={reprlib.repr(value)} is no number above 0")
    return settings, pool, device


def _check_ids(file: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Raises MeasuredRunError where two requests have the same id."""
    first: dict[str, int] = {}
    for number, record in enumerate(records, 1):
        name = str(record.get("request_id", f"line {number}"))
        if first.setdefault(name, number) != number:
            raise MeasuredRunError(f"{file}: request_id {name!r} is in lines {first[name]} and {number}")


def _tokens(workload: Path, requests: pd.DataFrame) -> list[Any]:
    """The prompts' token ids in order of arrival; request ids in the log are line numbers of the workload."""
    records = read_json_lines(workload)
    fields = number_columns(workload, records, ("input_toks", "output_toks"))
    rows = requests["row"].to_numpy()
    lengths = np.stack([fields["input_toks"], fields["output_toks"]], axis=1)
    measured = requests[["num_prompt_tokens", "num_output_tokens"]].to_numpy()
    if len(lengths) != len(measured) or (lengths[rows] != measured).any():
        raise MeasuredRunError(
            f"{workload}: not the workload of this run: {len(lengths)} requests, "
            f"where {len(measured)} of other lengths or in another order were measured"
        )
    given = [record.get("input_tok_ids") for record in records]
    for row, (ids, length) in enumerate(zip(given, fields["input_toks"], strict=True)):
        if not isinstance(ids, list) or len(ids) != length or not all(map(_is_token_id, ids)):
            raise MeasuredRunError(
                f"{workload}: input_tok_ids of line {row + 1} must be a list of {length:.0f} token ids, not "
                f"{reprlib.repr(ids)}"
            )
    return [np.array(given[row], dtype=np.int32) for row in rows]


def _is_token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _series(path: Path, meta: Mapping[str, Any], first_arrival: float) -> tuple[pd.DataFrame, list[str]]:
    """The state that the engine logged every tick, at wall-clock time started_at + t; and notes on what is missing."""
    if not path.is_file():
        return series_table({}), [f"no {path.name}: the state over time is unknown"]
    try:
        table = pd.read_csv(StringIO(read_text(path))).sort_values("t", kind="stable")
        started = datetime.fromisoformat(str(meta.get("started_at"))).timestamp()
        columns = {name: table[name].to_numpy(dtype=np.float64) for name in _SERIES}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise MeasuredRunError(
            f"{path}: needs the columns {', '.join(_SERIES)} in numbers, and started_at in meta.json ({error})"
        ) from None
    for name, values in columns.items():
        impossible = ~((values >= 0) & (values <= MAX_SPAN_S))
        if impossible.any():
            raise MeasuredRunError(f"{path}: {name} is {values[impossible][0]:.6g}")
    if abs(started - first_arrival) > MAX_SPAN_S:
        raise MeasuredRunError(f"{path}: started_at in meta.json is years away from the first arrival")
    known = {
        "time": columns["t"] + started - first_arrival,
        "num_running": columns["running"],
        "num_waiting": columns["waiting"],
    }
    if columns["kv_cache_pct"].any():
        return series_table({**known, "kv_cache_usage": columns["kv_cache_pct"] / 100}), []
    return series_table(known), [f"kv_cache_pct is 0 throughout {path.name}: taken as not recorded"]
