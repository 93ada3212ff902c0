"""Reads the result folder of a run on this project's own engine (engine=cpu or engine=gpu), or of a run against a
server (engine=openai), of which is known what its client saw."""

from __future__ import annotations

import reprlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.config import RunConfig, load
from harness.errors import MeasuredRunError
from harness.measured.measured_run import (
    MAX_SPAN_S,
    MeasuredRun,
    OwnRun,
    check_order,
    queued_times,
    requests_table,
    seen_times,
    series_table,
    trace_of,
)
from harness.measured.records import check_lengths
from harness.results.stored import files as results
from harness.results.tables import DECISIONS, Floats, RunResult
from harness.workload.readers import load_trace
from harness.workload.trace import Trace, rows_of
from simulator.quantities import MAX_TOKENS

SAMPLES = 500  # points in time at which the state is sampled
_TIMES = ("first_scheduled_time", "first_token_time", "finish_time")
_LENGTHS = ("num_prompt_tokens", "num_output_tokens")
_COUNTS = (*_LENGTHS, "num_cached_tokens", "num_preemptions")
_REQUEST_NUMBERS = ("arrival_time", "replay_lag", *_TIMES, *_COUNTS, "num_requested_tokens")
_SEEN_NUMBERS = ("arrival_time", "replay_lag", "first_token_time", "finish_time", *_LENGTHS)
_STEP_NUMBERS = ("start_time", "duration", *DECISIONS)
_LEVELS = ("num_running", "num_waiting", "kv_cache_usage")


def read(path: Path, workload: Path | None) -> MeasuredRun:
    """Read the result folder `path`. Its configuration names the trace, so a workload is refused.

    Raises:
        MeasuredRunError: the folder holds a simulation or an interrupted run, or its trace has changed.
        TwinServeError: a file of the folder, or the trace, cannot be read.
    """
    if workload is not None:
        raise MeasuredRunError("validation.workload: a result folder names its trace itself; leave it out")
    result, summary = results.read_results(path)
    is_seen = summary.get("engine") == "openai"
    _check_tables(path, result, is_seen=is_seen)
    if summary.get("simulated"):
        raise MeasuredRunError(f"{path}: a simulation, not a measured run; give a folder of engine=cpu, gpu or openai")
    status = result.requests["status"].value_counts()
    if not result.complete or status.get("unfinished", 0):
        raise MeasuredRunError(
            f"{path}: interrupted with {status.get('finished', 0)} of {len(result.requests)} requests finished"
        )
    if not status.get("finished", 0):
        raise MeasuredRunError(f"{path}: none of {len(result.requests)} requests finished")
    if result.requests.get("num_sequences", pd.Series([1])).max() != 1:
        raise MeasuredRunError(f"{path}: requests of several sequences (trace.n) cannot be compared")
    return (_seen if is_seen else _measured)(path, load(path / "config.yaml"), result)


def _check_tables(path: Path, result: RunResult, *, is_seen: bool) -> None:
    """Raises MeasuredRunError where a table lacks a column, or a number in it is impossible."""
    for file, table, names in (
        (results.REQUESTS, result.requests, _SEEN_NUMBERS if is_seen else _REQUEST_NUMBERS),
        (results.STEPS, result.steps, _STEP_NUMBERS),
    ):
        columns = {name: table[name] for name in names if name in table.columns and table.columns.is_unique}
        kinds = {name: "iu" if name.startswith("num_") else "iuf" for name in names}  # counts are whole
        wrong = [name for name in names if name not in columns or columns[name].dtype.kind not in kinds[name]]
        if wrong:
            what = "whole numbers" if wrong[0].startswith("num_") else "numbers"
            raise MeasuredRunError(f"{path / file}: no column of {what}: {', '.join(wrong)}")
        for name, column in columns.items():
            values = column.to_numpy(dtype=np.float64)
            unknown = np.isnan(values) if table is result.requests else np.zeros(len(values), dtype=bool)
            impossible = np.flatnonzero(~(unknown | (values >= 0) & (values <= MAX_SPAN_S)))
            if len(impossible):
                row = impossible[0]
                raise MeasuredRunError(f"{path / file}: {name} of row {row + 1} is {values[row]:.6g}")
    if "status" not in result.requests or not all(isinstance(each, str) for each in result.requests["status"]):
        raise MeasuredRunError(f"{path / results.REQUESTS}: no column of text: status")
    if (np.diff(result.steps["start_time"].to_numpy()) < 0).any():
        raise MeasuredRunError(f"{path / results.STEPS}: the steps are not in order of time")
    counts: dict[str, object] = {"num_blocks": result.num_blocks, "block_size": result.block_size}
    if is_seen and result.num_blocks is None:
        del counts["num_blocks"]  # the server did not tell
    for name, count in counts.items():
        if type(count) is not int or not 1 <= count <= MAX_TOKENS:
            raise MeasuredRunError(f"{path / results.SUMMARY}: {name} is {reprlib.repr(count)}")


def sample_steps(steps: pd.DataFrame, num_blocks: float, times: Floats) -> pd.DataFrame:
    """The state at `times` (s, on the clock of the steps) as in `MeasuredRun.series`; all zero while idle."""
    if steps.empty:
        return series_table({"time": times, **dict.fromkeys(_LEVELS, np.zeros(len(times)))})
    starts = steps["start_time"].to_numpy(dtype=np.float64)
    ends = starts + steps["duration"].to_numpy(dtype=np.float64)
    step = np.searchsorted(starts, times, side="right") - 1
    busy = (step >= 0) & (times < ends[step])
    levels = {name: np.where(busy, steps[name].to_numpy()[step], 0) for name in ("num_running", "num_waiting")}
    usage = np.where(busy, steps["num_used_blocks"].to_numpy()[step] / num_blocks, 0.0)
    return series_table({"time": times, **levels, "kv_cache_usage": usage})


def _series(steps: pd.DataFrame, num_blocks: float, origin: float) -> pd.DataFrame:
    """The state from `origin`, in s, to the end of the last step, as `MeasuredRun.series`."""
    end = float(steps["start_time"].iloc[-1] + steps["duration"].iloc[-1])
    series = sample_steps(steps, num_blocks, np.linspace(origin, end, SAMPLES))
    return series.assign(time=series["time"] - origin)


def _measured(path: Path, config: RunConfig, result: RunResult) -> MeasuredRun:
    finished = result.requests[result.requests["status"] == "finished"].reset_index(names="source_row")
    arrival = finished["arrival_time"].to_numpy(dtype=np.float64)
    issued = arrival + finished["replay_lag"].fillna(0.0).to_numpy(dtype=np.float64)
    if result.steps.empty:
        raise MeasuredRunError(f"{path / results.STEPS}: holds no step, though requests finished")
    if config.scheduler.async_scheduling:
        queued = queued_times(issued, result.steps)
    else:
        queued = seen_times(issued, finished["finish_time"].to_numpy(dtype=np.float64), result.steps)
    columns = {name: finished[name].to_numpy(dtype=np.float64) for name in (*_TIMES, *_COUNTS)}
    check_lengths(path / results.REQUESTS, columns, _LENGTHS)
    if np.isnan([arrival, *columns.values()]).any():
        raise MeasuredRunError(f"{path}: a finished request lacks a time or a count")
    requests = requests_table({"arrival_time": arrival, "queued_time": queued, **columns})
    check_order(path / results.REQUESTS, requests)
    rows = finished["source_row"].to_numpy()[requests["row"].to_numpy()]
    requests["num_requested_tokens"] = result.requests["num_requested_tokens"].to_numpy()[rows]
    refused = len(result.requests) - len(finished)
    notes = [f"{refused} requests that were refused are left out"] if refused else []
    return MeasuredRun(
        kind="run",
        source=str(path),
        engine=f"TwinServe engine={config.engine.kind} on {result.meta.get('device')}",
        data_files=(path / results.REQUESTS, path / results.STEPS),
        trace=_trace(path, config, requests, rows, len(result.requests)),
        requests=requests,
        series=_series(result.steps, result.pool_blocks, float(arrival.min())),
        settings={"model": config.model.name, "quantization": config.weight_format, "num_blocks": result.num_blocks},
        notes=tuple(notes),
        own=OwnRun(config, result, rows),
    )


def _seen(path: Path, config: RunConfig, result: RunResult) -> MeasuredRun:
    """What a client saw of a server. Requests arrive when they were sent: how late the client was is left out."""
    finished = result.requests[result.requests["status"] == "finished"].reset_index(names="source_row")
    columns = {name: finished[name].to_numpy(dtype=np.float64) for name in _SEEN_NUMBERS}
    columns["arrival_time"] = columns["arrival_time"] + np.nan_to_num(columns.pop("replay_lag"))
    check_lengths(path / results.REQUESTS, columns, _LENGTHS)
    requests = requests_table(columns)
    check_order(path / results.REQUESTS, requests)
    rows = finished["source_row"].to_numpy()[requests["row"].to_numpy()]
    ladder = path / results.LADDER
    if ladder.is_file():
        requests = requests.assign(**_loads(ladder, rows, len(result.requests)))
    trace = load_trace(config.trace, seed=config.seed, with_times=config.arrival.kind == "trace")
    lost = len(result.requests) - len(finished)
    notes = [f"{lost} requests that failed are left out; the server had them beside the others"] if lost else []
    if len(trace.rows) != len(result.requests):
        raise MeasuredRunError(f"{path}: the trace {trace.source} is no longer the one that this run replayed")
    trace = rows_of(trace, rows)
    if np.array_equal(trace.rows["num_prompt_tokens"], requests["num_prompt_tokens"].to_numpy()):
        seen = {name: requests[name].to_numpy() for name in ("arrival_time", "num_output_tokens")}
        trace = replace(trace, rows=trace.rows.assign(**seen))
    else:
        trace = trace_of(trace.name, trace.source, requests)
        notes.append("the server counts other prompts than the trace has: the simulated ones have its lengths only")
    pool, steps, origin = result.num_blocks, result.steps, float(columns["arrival_time"].min())
    usage = {"kv_cache_usage": steps["num_used_blocks"] / pool} if pool else {}
    levels = {name: steps[name] for name in ("num_running", "num_waiting")}
    series = series_table({"time": steps["start_time"] - origin, **levels, **usage})
    return MeasuredRun(
        kind="run",
        source=str(path),
        engine=f"{result.meta.get('model')}, {result.meta.get('device')}",
        data_files=(path / results.REQUESTS, *([ladder] if ladder.is_file() else [])),
        trace=trace,
        requests=requests,
        series=series[series["time"] >= 0],
        settings={"model": config.model.name},
        notes=tuple(notes),
        kv_tokens=None if pool is None else pool * result.block_size,
    )


def _loads(path: Path, rows: npt.NDArray[np.int64], count: int) -> dict[str, Any]:
    """Columns of `rows` of the `count` requests that task=observe sent: slice, load (requests/s), held_out."""
    try:
        slices = pd.read_csv(path, dtype={"load": float, "held_out": bool, "num_requests": int})
        if slices["num_requests"].sum() != count:
            raise ValueError(f"of {slices['num_requests'].sum():,} requests, and {count:,} were sent")
        number = np.repeat(np.arange(len(slices)), slices["num_requests"])[rows]
        return {"slice": number, **{name: slices[name].to_numpy()[number] for name in ("load", "held_out")}}
    except (OSError, ValueError, LookupError) as error:
        raise MeasuredRunError(f"{path}: {error}") from error


def _trace(path: Path, config: RunConfig, requests: pd.DataFrame, rows: np.ndarray, total: int) -> Trace:
    """The trace behind the run, contents included, in order of arrival at the measured times."""
    trace = load_trace(config.trace, seed=config.seed, with_times=config.arrival.kind == "trace")
    lengths = ["num_prompt_tokens", "num_output_tokens"]
    measured = requests[["num_prompt_tokens", "num_requested_tokens"]].to_numpy()
    if len(trace.rows) != total or (trace.table.iloc[rows][lengths].to_numpy() != measured).any():
        raise MeasuredRunError(f"{path}: the trace {trace.source} is no longer the one that this run replayed")
    trace = rows_of(trace, rows)
    return replace(trace, rows=trace.rows.assign(arrival_time=requests["arrival_time"].to_numpy()))
