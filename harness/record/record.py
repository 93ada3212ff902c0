"""The tables of a run, from what was recorded of each of its servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from engine.core.sequence import Request
from harness.record.recorded import Recorded
from harness.record.recorder import STATUSES
from harness.record.request_row import REQUEST_COLUMNS
from harness.record.request_times import NS, UNSET, latencies, seconds
from harness.record.step_columns import step_columns, table_of
from harness.results.tables import Gaps
from harness.workload.trace import CLASS_COLUMNS, Trace
from simulator.table import Categories, Table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RecordedRun:
    """The tables of a run; columns as documented in `harness.results.tables`, `requests` and `steps` as
    DataFrames. `spans` only if it was asked for, and
    the gaps between the tokens of each request (`itls`, in s) of a client only."""

    request_rows: Table
    step_rows: Table
    gaps: Gaps
    spans: pd.DataFrame | None
    itls: Sequence[Sequence[float]] | None = None

    @property
    def requests(self) -> pd.DataFrame:
        return self.request_rows.frame()

    @property
    def steps(self) -> pd.DataFrame:
        return self.step_rows.frame()


class Server(Protocol):
    """What is recorded of a server while it runs."""

    @property
    def num_done(self) -> int:
        """Requests finished or refused."""

    @property
    def now_ns(self) -> int:
        """The end of the last step."""

    def record_spans(self) -> None:
        """Also record what each sequence does when; to be called before the run."""

    def end(self, unfinished: Sequence[Request]) -> None:
        """The run has ended with these requests waiting or running; to be called before what follows."""

    def recorded(self) -> Recorded: ...

    def forget(self) -> None:
        """Let go of all but the counts and the time."""


class Record:
    """What the servers of a run have recorded so far; `has_store`: they share a store of KV blocks."""

    def __init__(self, servers: Sequence[Server], *, has_store: bool = False) -> None:
        self.servers = servers
        self._has_store = has_store

    @property
    def num_done(self) -> int:
        """Requests finished or refused."""
        return sum(server.num_done for server in self.servers)

    @property
    def now_ns(self) -> int:
        """The end of the last step."""
        return max(server.now_ns for server in self.servers)

    def record_spans(self) -> None:
        """Also record what each sequence does when; to be called before the run."""
        for server in self.servers:
            server.record_spans()

    def tables(self, trace: Trace, unfinished: Sequence[Sequence[Request]]) -> RecordedRun:
        """Build the tables; `unfinished` are the requests that each server had waiting or running at the end."""
        for server, left in zip(self.servers, unfinished, strict=True):
            server.end(left)
        return recorded_run([server.recorded() for server in self.servers], trace, has_store=self._has_store)

    def forget(self) -> None:
        """Let go of all but the counts and the time: who has the tables needs the rest no more."""
        for server in self.servers:
            server.forget()


def recorded_run(servers: Sequence[Recorded], trace: Trace, *, has_store: bool = False) -> RecordedRun:
    """The tables of a run of these servers, which have a store of KV blocks in common if `has_store`."""
    requests = _requests(servers, trace, has_store)
    steps = Table(step_columns([server.steps for server in servers]))
    gaps = _merged_gaps([server.gaps for server in servers])
    return RecordedRun(requests, steps, gaps, _spans(servers, requests["request_id"].to_numpy()))


def _requests(servers: Sequence[Recorded], trace: Trace, has_store: bool) -> Table:
    """A row per request of the trace, whichever server it was sent to; -1 for those that never arrived."""
    unfinished = {"status": STATUSES.index("unfinished")}
    never_issued = [unfinished.get(name, UNSET if name.endswith("_ns") else 0) for name in REQUEST_COLUMNS]
    values = np.tile(np.array(never_issued), (len(trace.rows), 1))
    server_of = np.full(len(trace.rows), -1)
    errors: dict[int, str] = {}
    lags: dict[int, int] = {}
    parked_ns: dict[int, int] = {}
    prompts: dict[int, tuple[int, int]] = {}
    for number, server in enumerate(servers):
        done = server.request_rows
        values[done[:, 0]] = done
        server_of[done[:, 0]] = number
        errors |= server.errors
        lags |= server.lags
        parked_ns |= server.parked_ns
        prompts |= {row: (number, end_ns) for row, end_ns in server.prompts.items()}
    recorded = table_of(values, REQUEST_COLUMNS)
    source, num_rows = trace.rows, len(trace.rows)
    table: dict[str, Any] = {"request_id": source["request_id"].to_numpy()}
    for column in ("session_id", "turn", *CLASS_COLUMNS):
        if column in source:
            table[column] = source[column].to_numpy()
    table["server"] = server_of
    table["status"] = Categories(recorded["status"].to_numpy(np.int8), STATUSES)
    table["error"] = _column(errors, num_rows, np.nan, object)
    table["arrival_time"] = seconds(recorded["arrival_ns"].to_numpy())
    # A simulated request is issued exactly when it is meant to be: it has no lag.
    table["replay_lag"] = _column(lags, num_rows, np.nan) * NS
    for name in ("first_scheduled", "first_token", "finish"):
        table[f"{name}_time"] = seconds(recorded[f"{name}_ns"].to_numpy())
    table["num_prompt_tokens"] = source["num_prompt_tokens"].to_numpy()
    table["num_sequences"] = trace.num_sequences
    table["num_requested_tokens"] = source["num_output_tokens"].to_numpy() * trace.num_sequences
    for column in REQUEST_COLUMNS[REQUEST_COLUMNS.index("num_output_tokens") :]:
        table[column] = recorded[column].to_numpy()
    if not has_store:
        del table["num_store_cached_tokens"]
    if prompts:
        prefilled_by = {row: number for row, (number, _) in prompts.items()}
        table["prefill_server"] = _column(prefilled_by, num_rows, -1, np.int64)
        ends_ns = {row: end_ns for row, (_, end_ns) in prompts.items()}
        table["prefill_end_time"] = _column(ends_ns, num_rows, np.nan) * NS
    table["parked_time"] = _column(parked_ns, num_rows, 0.0) * NS
    return Table(table | latencies(table, recorded))


def _spans(servers: Sequence[Recorded], request_ids: np.ndarray) -> pd.DataFrame | None:
    tables = [server.spans.table(request_ids) for server in servers if server.spans is not None]
    if len(tables) < 2:
        return tables[0] if tables else None
    import pandas as pd  # imported late, as a run without spans does without it

    return pd.concat(tables, ignore_index=True)


def _column(known: Mapping[int, Any], num_rows: int, otherwise: float, dtype: type = np.float64) -> np.ndarray:
    """A column of what is known of some rows, and of `otherwise` for the others."""
    values: np.ndarray = np.full(num_rows, otherwise, dtype)
    if known:
        values[[*known]] = [*known.values()]
    return values


def _merged_gaps(gaps: Sequence[Gaps]) -> Gaps:
    if len(gaps) == 1:
        return gaps[0]
    return Gaps(np.concatenate([each.values for each in gaps]), np.concatenate([each.weights for each in gaps]))
