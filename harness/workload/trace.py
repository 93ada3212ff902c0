"""The request trace: one table of requests, whatever file or sampler it came from."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simulator.table import Table, objects

if TYPE_CHECKING:
    import pandas as pd

_INTEGER_COLUMNS = ("num_prompt_tokens", "num_output_tokens", "n", "priority", "tenant", "session_id", "turn")
CLASS_COLUMNS = ("priority", "tenant", "deadline")
"""What policies tell requests apart by; kept in the results."""
_SECONDS_COLUMNS = ("deadline", "think_time")
_LIST_COLUMNS = ("hash_ids", "token_ids", "waits_for")


@dataclass(frozen=True)
class Trace:
    """Requests to replay, in arrival order.

    Attributes:
        name: short name for tables and plots.
        rows: one row per request; `table` is the same as a DataFrame. `request_id` int64, 0..n-1; `arrival_time`
            float64, seconds since the first request, NaN throughout when the trace has no times;
            `num_prompt_tokens` and `num_output_tokens` int64, >= 1. Optional, absent when the trace does not have
            them:
            `n` int64, >= 1: samples of the prompt, each of `num_output_tokens` tokens;
            `priority` int64, smaller is more urgent;
            `tenant` int64, who is served; where it is absent, each session is a tenant;
            `deadline` float64, seconds after its arrival by which a request should be done;
            `session_id` and `turn` int64: rows of a session are in turn order and its prompts are cumulative, each
            at least as long as the previous turn's prompt and output, which it starts with, unless `hash_ids` or
            `token_ids` say what it starts with;
            `waits_for` int64 arrays: earlier requests of the session whose answers the request needs, where a session
            is no chain of turns. Then `turn` is the longest way to it in requests, and the prompt starts with prompt
            and output of the first of these requests if it is as long; otherwise it is a new one, as of a sub-agent;
            `think_time` float64, seconds from the end of the previous turn of the session, or of the last request that
            it waits for, to this one;
            `hash_ids` int64 arrays, one id per block of `hash_block_size` prompt tokens (the last may be partial):
            two requests with an equal id have equal prompts up to the end of that block;
            `token_ids` int32 arrays of length `num_prompt_tokens`.
        source: path of the file, or what generated the requests.
        hash_block_size: tokens per hash id; None without `hash_ids`.
        bad_rows: rows of the file that were left out, counted by reason.
        notes: what a reader of the results must know about the data.
        stamp: `file_stamp` of the file when it was read.
    """

    name: str
    rows: Table
    source: str
    hash_block_size: int | None = None
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    stamp: Mapping[str, int] | None = None

    @cached_property
    def table(self) -> pd.DataFrame:
        """The requests as a DataFrame with a RangeIndex."""
        return self.rows.frame()

    @property
    def has_times(self) -> bool:
        """Whether the trace says when its requests arrive."""
        return not np.isnan(self.rows["arrival_time"]).any()

    @property
    def prompts_share(self) -> bool:
        """Whether the trace says that prompts begin alike: those of a session, those with equal contents or samples."""
        repeats = "session_id" in self.rows and len(np.unique(self.rows["session_id"])) < len(self.rows)
        return repeats or bool({"hash_ids", "token_ids"} & {*self.rows}) or bool((self.num_sequences > 1).any())

    @property
    def num_sequences(self) -> npt.NDArray[np.int64]:
        """int64[requests]: sequences of each request."""
        if "n" in self.rows:
            numbers: npt.NDArray[np.int64] = self.rows["n"].to_numpy(dtype=np.int64)
            return numbers
        return np.ones(len(self.rows), dtype=np.int64)


def tenants(trace: Trace) -> list[int] | None:
    """The tenant of each row; None where all are of the same."""
    column = next((name for name in ("tenant", "session_id") if name in trace.rows), None)
    return None if column is None else trace.rows[column].tolist()


def deadlines_ns(trace: Trace) -> list[int] | None:
    """When each row should be done, in ns after its arrival; None where the trace has no deadlines."""
    if "deadline" not in trace.rows:
        return None
    return [round(seconds * 1e9) for seconds in trace.rows["deadline"].tolist()]


def whole_numbers(values: npt.NDArray[np.int64]) -> array[int]:
    """The numbers as Python reads them one by one, in a fifth of the memory of a list."""
    numbers = array("q")
    numbers.frombytes(np.ascontiguousarray(values, dtype=np.int64).tobytes())
    return numbers


def file_stamp(path: str | None) -> dict[str, int] | None:
    """Size in bytes of a file and time of its last change in ns, by which another content is told; None without one."""
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return {"bytes": status.st_size, "changed_ns": status.st_mtime_ns}


def trace_table(columns: Mapping[str, Any], *, ticks_per_second: int = 1) -> Table:
    """Assembles `Trace.rows` from its columns.

    Args:
        columns: by name, each of length n >= 1. `num_prompt_tokens` and `num_output_tokens` are required;
            `arrival_time` in ticks from any origin, ascending. A `session_id` without `turn` gets turns counted.
        ticks_per_second: resolution of `arrival_time`; integer ticks keep their exact distances.
    """
    n = len(columns["num_prompt_tokens"])
    table: dict[str, Any] = {"request_id": np.arange(n, dtype=np.int64), "arrival_time": np.full(n, np.nan)}
    if "arrival_time" in columns:
        ticks = np.asarray(columns["arrival_time"])
        table["arrival_time"] = (ticks - ticks[0]) / ticks_per_second
    for name in _INTEGER_COLUMNS:
        if name in columns:
            table[name] = np.asarray(columns[name], dtype=np.int64)
    for name in _SECONDS_COLUMNS:
        if name in columns:
            table[name] = np.asarray(columns[name], dtype=np.float64)
    if "waits_for" in columns:
        table["turn"] = _depths(columns["waits_for"])
    elif "session_id" in table and "turn" not in table:
        table["turn"] = _turns(table["session_id"])
    for name in _LIST_COLUMNS:
        if name in columns:
            table[name] = objects(columns[name])
    return Table(table)


def _turns(session_id: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64[n]: how many rows of its session come before each."""
    order = np.argsort(session_id, kind="stable")
    in_order = session_id[order]
    firsts = np.searchsorted(in_order, in_order, side="left")
    turns = np.empty(len(session_id), dtype=np.int64)
    turns[order] = np.arange(len(session_id)) - firsts
    return turns


def _depths(waits_for: Iterable[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """int64[n]: requests on the longest way to each row, which waits for earlier rows only."""
    depths: list[int] = []
    for earlier in waits_for:
        depths.append(max((depths[row] + 1 for row in earlier.tolist()), default=0))
    return np.array(depths, dtype=np.int64)


def rows_of(trace: Trace, rows: npt.NDArray[np.int64]) -> Trace:
    """The trace with these rows only, in this order; they wait for none of the others."""
    table = trace.rows[rows]
    if "waits_for" in table:
        table = table.assign(waits_for=renumbered(table["waits_for"], rows.tolist()))
    return replace(trace, rows=table.assign(request_id=np.arange(len(table))))


def renumbered(waits_for: Iterable[npt.NDArray[np.int64]], request_ids: Iterable[int]) -> npt.NDArray[np.object_]:
    """`waits_for` in numbers of rows, for the ids of the requests in these rows; without those that are not there."""
    row_of = {number: row for row, number in enumerate(request_ids)}
    rows = [[row_of[each] for each in ids.tolist() if each in row_of] for ids in waits_for]
    return objects([np.array(each, dtype=np.int64) for each in rows])


def conversation_columns(
    *, num_turns: npt.NDArray[np.int64], new_tokens: npt.NDArray[np.int64], output_tokens: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[np.int64]]:
    """Columns of conversations whose prompts hold everything said before: prompt(t) = prompt(t-1) + output(t-1) + new.

    Args:
        num_turns: int64[sessions], >= 1.
        new_tokens: int64[requests], tokens of each turn's new message, turn after turn, session after session.
        output_tokens: int64[requests], likewise.
    """
    session_id = np.repeat(np.arange(len(num_turns), dtype=np.int64), num_turns)
    first_row = np.cumsum(num_turns) - num_turns
    said = np.concatenate([[0], np.cumsum(new_tokens + output_tokens)])  # before each row, by all sessions so far
    return {
        "session_id": session_id,
        "turn": np.arange(len(session_id), dtype=np.int64) - first_row[session_id],
        "num_prompt_tokens": said[:-1] - said[first_row][session_id] + new_tokens,
        "num_output_tokens": output_tokens,
    }
