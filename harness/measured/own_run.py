"""Reads the result folder of a run on this project's own engine (engine=cpu or engine=gpu)."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from harness.config import RunConfig, load
from harness.config.schema.workload import MAX_TOKENS
from harness.errors import MeasuredRunError
from harness.measured.measured_run import (
    MAX_SPAN_S,
    TIMES,
    MeasuredRun,
    OwnRun,
    check_order,
    halves_of,
    requests_table,
    seen_times,
    series_table,
    whole_ns,
    with_latencies,
)
from harness.measured.records import check_lengths, read_json
from harness.results.stored import files as results
from harness.results.tables import DECISIONS, Floats, RunResult
from harness.workload.readers import load_trace
from harness.workload.trace import Trace

SAMPLES = 500  # points in time at which the state is sampled
_TIMES = ("first_scheduled_time", "first_token_time", "finish_time")
_LENGTHS = ("num_prompt_tokens", "num_output_tokens")
_COUNTS = (*_LENGTHS, "num_cached_tokens", "num_preemptions")
_REQUEST_NUMBERS = ("arrival_time", "replay_lag", *_TIMES, *_COUNTS, "num_requested_tokens")
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
    _check_tables(path, result)
    if summary.get("simulated"):
        raise MeasuredRunError(f"{path}: a simulation, not a measured run; give a folder of engine=cpu or engine=gpu")
    status = result.requests["status"].value_counts()
    if not result.complete or status.get("unfinished", 0):
        raise MeasuredRunError(
            f"{path}: interrupted with {status.get('finished', 0)} of {len(result.requests)} requests finished"
        )
    if not status.get("finished", 0):
        raise MeasuredRunError(f"{path}: none of {len(result.requests)} requests finished")
    if result.requests.get("num_sequences", pd.Series([1])).max() != 1:
        raise MeasuredRunError(f"{path}: requests of several sequences (trace.n) cannot be compared")
    return _measured(path, load(path / "config.yaml"), result)


def _check_tables(path: Path, result: RunResult) -> None:
    """Raises MeasuredRunError where a table lacks a column, or a number in it is impossible."""
    for file, table, names in (
        (results.REQUESTS, result.requests, _REQUEST_NUMBERS),
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
    counts = {"num_blocks": result.num_blocks, "block_size": result.block_size}
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


def with_retimed(run: MeasuredRun, folders: Sequence[Path]) -> MeasuredRun:
    """`run` with the step times that task=retime wrote to `folders`.

    Raises:
        MeasuredRunError: a folder holds no step times, or the step times of another run.
    """
    if run.own is None:
        raise MeasuredRunError(f"validation.retimed: {run.source} is not a run of this project's own engine")
    times, data_sha256 = [], run.data_sha256()
    if len(set(folders)) < len(folders):
        raise MeasuredRunError("validation.retimed: names a folder twice")
    for folder in folders:
        document = read_json(folder / results.RETIMED)
        measured = document.get("measured") if isinstance(document, dict) else None
        measured = measured if isinstance(measured, dict) else {}
        source = measured.get("source")
        if source is None or measured.get("data_sha256") != data_sha256:
            raise MeasuredRunError(f"{folder}: step times of {source or 'no run'}, not of {run.source}")
        times.append(_read_step_times(folder / results.STEP_TIMES, len(run.own.result.steps)))
    return replace(run, own=replace(run.own, retimed=np.concatenate(times)))


def _read_step_times(path: Path, num_steps: int) -> Floats:
    """float64[repeats, steps], in s."""
    table = results.read_table(path, ["repeat", "step", "duration"])
    try:
        times = table.pivot(index="repeat", columns="step", values="duration").to_numpy(dtype=np.float64)
    except (ValueError, TypeError):  # a step is there twice, or a time is no number
        times = np.empty((0, 0))
    if not len(times) or times.shape[1] != num_steps or not ((times >= 0) & (times <= MAX_SPAN_S)).all():
        raise MeasuredRunError(f"{path}: not one time in s for each of {num_steps} steps in each repeat")
    return times


def at_median_times(run: MeasuredRun) -> tuple[MeasuredRun, list[MeasuredRun]]:
    """`run` as if each step had taken the median of its executions; the same with each half of the executions.

    Raises:
        MeasuredRunError: the steps were not executed again.
    """
    if run.own is None or run.own.retimed is None:
        raise MeasuredRunError(
            f"validation.step_times=median: needs more executions of the steps of {run.source} (validation.retimed)"
        )
    executions = run.own.executions()
    whole, *halves = (
        _with_durations(run, run.own, np.median(part, axis=0)) for part in (executions, *halves_of(executions))
    )
    return whole, halves


def _with_durations(run: MeasuredRun, own: OwnRun, durations_s: Floats) -> MeasuredRun:
    """`run` as if its steps had taken `durations_s`.

    An event during a step, such as an arrival, moves to the same fraction of the step's new duration; idle times keep
    their length. `own` keeps the measured tables.
    """
    steps = own.result.steps
    starts, before = whole_ns(steps["start_time"]), whole_ns(steps["duration"])
    now = whole_ns(durations_s)
    later = np.cumsum(now - before)
    new_starts = starts + np.concatenate([[0], later[:-1]])
    knots = np.stack([starts, starts + before], axis=1).ravel()
    images = np.stack([new_starts, new_starts + now], axis=1).ravel()
    arrivals = own.result.requests["arrival_time"].to_numpy(dtype=np.float64)[own.rows]
    origin_ns = whole_ns(arrivals.min())

    def moved(times_s: pd.Series[float]) -> Floats:
        times_ns = whole_ns(times_s) + origin_ns
        return (np.rint(np.interp(times_ns, [0, *knots], [0, *images])) - origin_ns) * 1e-9

    requests = with_latencies(run.requests.assign(**{name: moved(run.requests[name]) for name in TIMES}), "arrival")
    steps = steps.assign(start_time=new_starts * 1e-9, duration=now * 1e-9)
    return replace(
        run,
        trace=replace(run.trace, table=run.trace.table.assign(arrival_time=requests["arrival_time"].to_numpy())),
        requests=requests,
        series=_series(steps, own.result.pool_blocks, float(arrivals.min())),
    )


def _series(steps: pd.DataFrame, num_blocks: float, origin: float) -> pd.DataFrame:
    """The state from `origin`, in s, to the end of the last step, as `MeasuredRun.series`."""
    end = float(steps["start_time"].iloc[-1] + steps["duration"].iloc[-1])
    series = sample_steps(steps, num_blocks, np.linspace(origin, end, SAMPLES))
    return series.assign(time=series["time"] - origin)


def _measured(path: Path, config: RunConfig, result: RunResult) -> MeasuredRun:
    finished = result.requests[result.requests["status"] == "finished"].reset_index(names="source_row")
    arrival = finished["arrival_time"].to_numpy(dtype=np.float64)
    issued = arrival + finished["replay_lag"].fillna(0.0).to_numpy(dtype=np.float64)
    columns = {name: finished[name].to_numpy(dtype=np.float64) for name in (*_TIMES, *_COUNTS)}
    check_lengths(path / results.REQUESTS, columns, _LENGTHS)
    if np.isnan([arrival, *columns.values()]).any() or result.steps.empty:
        raise MeasuredRunError(f"{path}: a finished request lacks a time or a count, or there are no steps")
    requests = requests_table(
        {
            "arrival_time": arrival,
            "queued_time": seen_times(issued, finished["finish_time"].to_numpy(dtype=np.float64), result.steps),
            **columns,
        }
    )
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


def _trace(path: Path, config: RunConfig, requests: pd.DataFrame, rows: np.ndarray, total: int) -> Trace:
    """The trace behind the run, contents included, in order of arrival at the measured times."""
    trace = load_trace(config.trace, seed=config.seed, with_times=config.arrival.kind == "trace")
    lengths = ["num_prompt_tokens", "num_output_tokens"]
    measured = requests[["num_prompt_tokens", "num_requested_tokens"]].to_numpy()
    if len(trace.table) != total or (trace.table.iloc[rows][lengths].to_numpy() != measured).any():
        raise MeasuredRunError(f"{path}: the trace {trace.source} is no longer the one that this run replayed")
    table = trace.table.iloc[rows].reset_index(drop=True)
    table = table.assign(request_id=np.arange(len(table)), arrival_time=requests["arrival_time"].to_numpy())
    return replace(trace, table=table)
