"""A measured run of any engine, in the one form that every reader produces."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.errors import MeasuredRunError
from harness.results.tables import Floats
from harness.workload.trace import Trace, trace_table

if TYPE_CHECKING:
    from harness.config import RunConfig
    from harness.results.tables import RunResult

TIMES = ("arrival_time", "queued_time", "first_scheduled_time", "first_token_time", "finish_time")
_SERIES = ("num_running", "num_waiting", "kv_cache_usage")
_CHUNK = 1 << 20
MAX_SPAN_S = 1e9  # of a run: 31 years
# Unix times of this century are multiples of 2.4e-7 s; adding and subtracting them may be off by two of these.
_CLOCK_S = 2 * float(np.spacing(1.8e9))
_NS_DIGITS = 9  # times in s are exact to the ns: rounding keeps equal times equal after arithmetic


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """What is known about a measured run. Times are in s since its first arrival.

    Attributes:
        kind: the format of the record.
        source: the path of the record.
        engine: name and version of the engine.
        data_files: the files that hold the requests; their hash identifies the data.
        trace: the requests that clients sent, in order of arrival, at the measured arrival times.
        requests: one row per row of `trace`, all finished, with columns as in the requests table of
            `harness.results.tables`: `TIMES`, ttft, tpot, e2el, queue_time (s); num_prompt_tokens,
            num_requested_tokens, num_output_tokens, num_cached_tokens, num_preemptions. `queued_time` is when the
            scheduler first saw the request, between two steps. A column that the format lacks is NaN. Of what
            task=observe measured also slice (from 0), load (requests/s) and held_out.
        series: time, and num_running, num_waiting, kv_cache_usage (share) at that time. A column that the format lacks
            is NaN; the table is empty where the format records nothing over time.
        settings: settings of the engine that the format records.
        notes: what a reader of the comparison must know.
        own: configuration and tables of a run of this project's own engine; None for other engines.
        kv_tokens: tokens that the KV pool of another engine's run held, where its record tells.
        memory_bytes: memory of each of its GPUs, where its record tells.
    """

    kind: str
    source: str
    engine: str
    data_files: tuple[Path, ...]
    trace: Trace
    requests: pd.DataFrame
    series: pd.DataFrame
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    own: OwnRun | None = None
    kv_tokens: int | None = None
    memory_bytes: int | None = None

    def data_sha256(self) -> str:
        """Hash of the files that the requests were read from."""
        digest = hashlib.sha256()
        for path in self.data_files:
            with open(path, "rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        return digest.hexdigest()

    def requests_sha256(self) -> str:
        """Hash of the requests' lengths in order of arrival, equal in another run of the same requests."""
        lengths = self.requests[["num_prompt_tokens", "num_requested_tokens"]].to_numpy(dtype="<i8")
        return hashlib.sha256(lengths.tobytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class OwnRun:
    """A measured run of this project's own engine. Times count from the start of its replay.

    Attributes:
        config: its configuration.
        result: its tables.
        rows: int64[n], the row of `result.requests` for each row of `MeasuredRun.trace`.
    """

    config: RunConfig
    result: RunResult
    rows: npt.NDArray[np.int64]


def requests_table(columns: Mapping[str, npt.ArrayLike]) -> pd.DataFrame:
    """Assemble `MeasuredRun.requests` from columns with times in s from any origin and requests in any order.

    `arrival_time`, `first_token_time`, `finish_time`, `num_prompt_tokens` and `num_output_tokens` are required. The
    returned rows are in order of arrival; `row` is their position in the input. A time that lies before the
    preceding one by no more than the resolution of a log's clock is set to that one.
    """
    arrival = np.asarray(columns["arrival_time"], dtype=np.float64)
    order = np.argsort(arrival, kind="stable")
    table = pd.DataFrame({"request_id": np.arange(len(order)), "row": order})
    table["status"] = "finished"
    for name in TIMES:
        values = np.asarray(columns.get(name, np.full(len(order), np.nan)), dtype=np.float64)
        table[name] = (values - arrival[order[0]])[order].round(_NS_DIGITS)
    _absorb_rounding(table)
    for name in ("num_prompt_tokens", "num_output_tokens"):
        table[name] = np.asarray(columns[name], dtype=np.int64)[order]
    table["num_requested_tokens"] = table["num_output_tokens"]
    for name in ("num_cached_tokens", "num_preemptions"):
        table[name] = np.asarray(columns.get(name, np.full(len(order), np.nan)), dtype=np.float64)[order]
    return with_latencies(table, "arrival")


def _absorb_rounding(table: pd.DataFrame) -> None:
    """Lift times that precede the known one before them by rounding alone, in place."""
    before = table[TIMES[0]]
    for name in TIMES[1:]:
        is_rounded = (table[name] < before) & (before - table[name] <= _CLOCK_S)
        table[name] = table[name].where(~is_rounded, before)
        before = table[name].fillna(before)


def with_latencies(requests: pd.DataFrame, latency_from: str) -> pd.DataFrame:
    """The table with ttft, tpot, e2el and queue_time in s, counted from `arrival_time` or from `queued_time`."""
    start = requests["arrival_time" if latency_from == "arrival" else "queued_time"]
    more = requests["num_output_tokens"] - 1
    decoding = requests["finish_time"] - requests["first_token_time"]
    return requests.assign(
        ttft=(requests["first_token_time"] - start).round(_NS_DIGITS),
        tpot=(decoding / more.where(more > 0)).astype(np.float64),
        e2el=(requests["finish_time"] - start).round(_NS_DIGITS),
        queue_time=(requests["first_scheduled_time"] - start).round(_NS_DIGITS),
    )


def trace_of(name: str, source: str, requests: pd.DataFrame, token_ids: Sequence[Any] | None = None) -> Trace:
    """The trace behind `requests`; token_ids are in the order of their rows."""
    columns: dict[str, Any] = {
        "arrival_time": requests["arrival_time"].to_numpy(),
        "num_prompt_tokens": requests["num_prompt_tokens"].to_numpy(),
        "num_output_tokens": requests["num_requested_tokens"].to_numpy(),
    }
    if token_ids is not None:
        columns["token_ids"] = token_ids
    return Trace(name, trace_table(columns), source)


def series_table(columns: Mapping[str, npt.ArrayLike]) -> pd.DataFrame:
    """Assemble `MeasuredRun.series`; missing columns are NaN."""
    table = pd.DataFrame({"time": np.asarray(columns.get("time", []), dtype=np.float64)})
    for name in _SERIES:
        table[name] = np.asarray(columns.get(name, np.full(len(table), np.nan)), dtype=np.float64)
    return table


def queued_times(arrival_s: Floats, steps: pd.DataFrame) -> Floats:
    """When the scheduler first saw requests that arrived at `arrival_s`: at once when it was idle, else at the end of
    the step under way."""
    starts = steps["start_time"].to_numpy(dtype=np.float64)
    if not len(starts):
        return arrival_s
    ends = starts + steps["duration"].to_numpy(dtype=np.float64)
    step = np.searchsorted(starts, arrival_s, side="left") - 1  # the last that starts before
    waits = (step >= 0) & (arrival_s < ends[step])
    return np.where(waits, ends[step], arrival_s)


def seen_times(issued_s: Floats, finish_s: Floats, steps: pd.DataFrame) -> Floats:
    """When the scheduler of our own engine, real or simulated, first saw requests that were issued at `issued_s`.

    The scheduler gets requests in order of issue. Refused requests have no finish time; the scheduler saw them when
    they were issued.
    """
    seen, served = issued_s.copy(), np.flatnonzero(~np.isnan(finish_s))
    order = served[np.argsort(issued_s[served], kind="stable")]
    seen[order] = steps["start_time"].to_numpy(dtype=np.float64)[handover_steps(steps, finish_s[served])]
    return seen


def handover_steps(steps: pd.DataFrame, finish_s: Floats) -> npt.NDArray[np.int64]:
    """The step at whose start the scheduler got the 1st, 2nd, ... of the requests that finished at `finish_s`.

    The number of requests that the scheduler has got at the start of a step is the number that run or wait in the step
    plus the number that finished before it.
    """
    start_ns, finish_ns = whole_ns(steps["start_time"]), np.sort(whole_ns(finish_s))
    handed = np.searchsorted(finish_ns, start_ns, side="right")
    handed += (steps["num_running"] + steps["num_waiting"]).to_numpy()
    step = np.searchsorted(np.maximum.accumulate(handed), np.arange(len(finish_ns)), side="right")
    return np.minimum(step, len(start_ns) - 1)


def whole_ns(seconds: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Times in whole ns, as they were recorded before the tables converted them to s."""
    return np.rint(np.asarray(seconds, dtype=np.float64) * 1e9).astype(np.int64)


def check_order(path: Path, requests: pd.DataFrame) -> None:
    """Raises MeasuredRunError where times of a request contradict each other, or are years after the first arrival."""
    times = requests[list(TIMES)].to_numpy()
    far = np.flatnonzero(np.nan_to_num(times, nan=0.0).max(axis=1) > MAX_SPAN_S)
    if len(far) or not np.isfinite(times[:, [0, -1]]).all():
        row = far[0] if len(far) else np.flatnonzero(~np.isfinite(times[:, [0, -1]]).all(axis=1))[0]
        raise MeasuredRunError(
            f"{path}: a time of request {requests['row'].iloc[row] + 1} is no number, or more than {MAX_SPAN_S:.0e} s "
            "after the first arrival; wrong unit?"
        )
    for earlier in range(len(TIMES) - 1):
        later = earlier + 1
        while later < len(TIMES) - 1 and np.isnan(times[:, later]).all():
            later += 1
        wrong = np.flatnonzero(times[:, later] < times[:, earlier])
        if len(wrong):
            raise MeasuredRunError(
                f"{path}: {TIMES[later]} before {TIMES[earlier]} in {len(wrong)} of {len(times)} requests, first in "
                f"request {requests['row'].iloc[wrong[0]] + 1}; wrong unit or clock?"
            )
