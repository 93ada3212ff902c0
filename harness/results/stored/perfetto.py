"""A run as a trace for ui.perfetto.dev and chrome://tracing, in the Trace Event Format.

    process "engine"     thread "steps": one slice per step; an instant where a step preempts; counters of running and
                         waiting requests and of the KV pool. Each server of a fleet has a process ("engine 0"), each
                         lane of a pipeline a thread
    process "requests"   one asynchronous slice per request, from its arrival on, with its parts: waiting, parked,
                         prefill, decode, preempted and swapped, as `harness.record.span_log` has them. Each further
                         sample of a request has a slice of its own, from the first token on

Times are microseconds since the start of the run.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.results.measures.servers import overlap_free
from harness.results.stored.files import write_whole
from harness.results.tables import RunResult

if TYPE_CHECKING:
    import pandas as pd

TRACE = "trace.json.gz"
MOST_EVENTS = 400_000  # about 60 MB of JSON; the page takes seconds to load them
_ENGINE, _REQUESTS = 1, 2  # process ids
_EVENTS_OF_A_STEP, _EVENTS_OF_A_SPAN = 4, 2
_STEP_ARGS = ("num_decode_seqs", "num_prefill_seqs", "num_prefill_tokens", "num_context_tokens")
_REQUEST_ARGS = (
    "request_id", "num_prompt_tokens", "num_output_tokens", "num_cached_tokens", "num_preemptions", "status"
)  # fmt: skip
Event = dict[str, Any]


def write_trace(result: RunResult, spans: pd.DataFrame, folder: Path, window: tuple[float, ...] | None = None) -> Path:
    """Write trace.json.gz; returns its path.

    Args:
        spans: what each sequence did when: `RunResult.spans`.
        window: from and to in seconds of the run; None is all of it, from the start on as far as MOST_EVENTS go.
    """
    start, end = window or (0.0, np.inf)
    end = min(end, _end_of_events(result, spans, start))
    document = {
        "traceEvents": trace_events(result, spans, start, end),
        "displayTimeUnit": "ms",
        "otherData": {"model": result.meta.get("model"), "device": result.meta.get("device"), "until_s": _finite(end)},
    }
    path = folder / TRACE
    write_whole(path, lambda temporary: _write(temporary, document))
    return path


def trace_events(result: RunResult, spans: pd.DataFrame, start: float, end: float) -> list[Event]:
    """The events between two times of the run, in order of time; slices are cut at the borders."""
    spans = spans.fillna({"end": max(_last(result), spans["start"].max())})
    events = [*_step_events(result, start, end), *_request_events(result.requests, spans, start, end)]
    events.sort(key=lambda event: event["ts"])  # stable: of one time, an end stays before what begins
    return [*_names(result), *events]


def _end_of_events(result: RunResult, spans: pd.DataFrame, start: float) -> float:
    """The time up to which MOST_EVENTS suffice, from `start` on."""
    outer = spans.drop_duplicates(["request_id", "sequence"])
    times = np.concatenate([result.steps["start_time"], spans["start"], outer["start"]])
    counts = [len(result.steps), len(spans), len(outer)]
    costs = np.repeat([_EVENTS_OF_A_STEP, _EVENTS_OF_A_SPAN, _EVENTS_OF_A_SPAN], counts)
    order = np.argsort(times, kind="stable")
    order = order[times[order] >= start]
    beyond = np.flatnonzero(np.cumsum(costs[order]) > MOST_EVENTS)
    return float(times[order][beyond[0]]) if len(beyond) else np.inf


def _last(result: RunResult) -> float:
    ends = [result.steps["start_time"] + result.steps["duration"], result.requests["finish_time"]]
    return float(max((column.max() for column in ends if column.notna().any()), default=0.0))


def _names(result: RunResult) -> Iterator[Event]:
    servers, lanes = range(result.num_servers), range(result.num_lanes)
    names = {_process(server): f"engine {server}" if len(servers) > 1 else "engine" for server in servers}
    for process, name in {**names, _REQUESTS: "requests"}.items():
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "ts": 0, "args": {"name": name}}
    for process, lane in product(names, lanes):
        name = f"steps of lane {lane}" if len(lanes) > 1 else "steps"
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": 1 + lane, "ts": 0, "args": {"name": name}}


def _process(server: int) -> int:
    """The process of a server; the requests have the second one."""
    return server + (_ENGINE if server == 0 else _REQUESTS)


def _step_events(result: RunResult, start: float, end: float) -> Iterator[Event]:
    for steps in (result.steps.iloc[rows] for rows in overlap_free(result.steps)):
        yield from _events_of_lane(result, steps, start, end)


def _events_of_lane(result: RunResult, steps: pd.DataFrame, start: float, end: float) -> Iterator[Event]:
    begins = steps["start_time"].to_numpy()
    # No step lasts into the next one, so that rounding cannot make slices of a thread overlap.
    ends = np.minimum(begins + steps["duration"].to_numpy(), np.append(begins[1:], np.inf))
    shown = (ends > start) & (begins < end)
    for row, begin, stop in zip(steps[shown].to_dict("records"), begins[shown], ends[shown], strict=True):
        at = {"ts": _us(max(begin, start)), "pid": _process(row.get("server", 0)), "tid": 1 + row.get("lane", 0)}
        parts = [name for name in ("prefill", "decode") if row[f"num_{name}_seqs"]]
        duration = round(_us(min(stop, end)) - at["ts"], 3)
        args = {name: row[name] for name in _STEP_ARGS} | {"step": row["step"]}
        yield {"ph": "X", "name": " + ".join(parts) or "transfer", "cat": "step", "dur": duration, "args": args} | at
        if row["num_preempted"]:
            args = {"requests": row["num_preempted"]}
            yield {"ph": "i", "name": "preempted", "cat": "step", "s": "t", "args": args} | at
        counts = {"running": row["num_running"], "waiting": row["num_waiting"]}
        yield {"ph": "C", "name": "requests", "args": counts} | at
        if result.num_blocks is not None:
            share = round(100 * row["num_used_blocks"] / result.num_blocks, 3)
            yield {"ph": "C", "name": "KV pool, %", "args": {"used": share}} | at


def _request_events(requests: pd.DataFrame, spans: pd.DataFrame, start: float, end: float) -> Iterator[Event]:
    rows = {row["request_id"]: row for row in requests.to_dict("records")}
    for _, parts in spans.groupby(["request_id", "sequence"], sort=False):
        request, sequence = parts["request_id"].iloc[0], parts["sequence"].iloc[0]
        begins, ends = parts["start"].to_numpy(), parts["end"].to_numpy()
        if ends[-1] < start or begins[0] >= end:
            continue
        args = {name: rows[request][name] for name in _REQUEST_ARGS} | {"sequence": int(sequence)}
        track = f"{request}.{sequence}" if sequence else str(request)
        yield _edge("b", "request", track, max(begins[0], start)) | {"args": args}
        for name, begin, until in zip(parts["state"], begins, ends, strict=True):
            if until >= start and begin < end:
                yield _edge("b", name, track, max(begin, start))
                yield _edge("e", name, track, min(until, end))
        yield _edge("e", "request", track, min(ends[-1], end))


def _edge(phase: str, name: str, track: str, time_s: float) -> Event:
    return {
        "ph": phase, "cat": "request", "name": name, "id": track, "pid": _REQUESTS, "tid": 0, "ts": _us(time_s)
    }  # fmt: skip


def _us(time_s: float) -> float:
    return round(time_s * 1e6, 3)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _write(path: Path, document: dict[str, Any]) -> None:
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=5) as file:
        json.dump(document, file, allow_nan=False, separators=(",", ":"))
