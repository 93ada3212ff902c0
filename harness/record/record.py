"""The tables of a run, from what was recorded of each of its servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from engine.core.sequence import Request
from harness.record.recorder import STATUSES, Recorder
from harness.record.request_row import REQUEST_COLUMNS
from harness.record.request_times import NS, UNSET, seconds, with_latencies
from harness.results.tables import Gaps
from harness.workload.trace import CLASS_COLUMNS, Trace


@dataclass(frozen=True)
class RecordedRun:
    """The tables of a run; columns as documented in `harness.results.tables`. `spans` only if it was asked for, and
    the gaps between the tokens of each request (`itls`, in s) of a client only."""

    requests: pd.DataFrame
    steps: pd.DataFrame
    gaps: Gaps
    spans: pd.DataFrame | None
    itls: Sequence[Sequence[float]] | None = None


class Record:
    """What the servers of a run have recorded so far; `has_store`: they share a store of KV blocks."""

    def __init__(self, servers: Sequence[Recorder], *, has_store: bool = False) -> None:
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
        gaps = _merged_gaps([server.gaps() for server in self.servers])  # first, as it needs memory for a while
        requests = self._requests(trace)
        return RecordedRun(requests, self._steps(), gaps, self._spans(requests["request_id"].to_numpy()))

    def forget(self) -> None:
        """Let go of all but the counts and the time: who has the tables needs the rest no more."""
        for server in self.servers:
            server.forget()

    def _requests(self, trace: Trace) -> pd.DataFrame:
        """A row per request of the trace, whichever server it was sent to; -1 for those that never arrived."""
        unfinished = {"status": STATUSES.index("unfinished")}
        never_issued = [unfinished.get(name, UNSET if name.endswith("_ns") else 0) for name in REQUEST_COLUMNS]
        values = np.tile(np.array(never_issued), (len(trace.table), 1))
        server_of = np.full(len(trace.table), -1)
        errors: dict[int, str] = {}
        lags: dict[int, int] = {}
        parked_ns: dict[int, int] = {}
        prompts: dict[int, tuple[int, int]] = {}
        for number, server in enumerate(self.servers):
            done = server.request_rows()
            values[done[:, 0]] = done
            server_of[done[:, 0]] = number
            errors |= server.errors
            lags |= server.lags
            parked_ns |= server.parked_ns
            prompts |= {row: (number, end_ns) for row, end_ns in server.prompts.items()}
        recorded = pd.DataFrame(values, columns=list(REQUEST_COLUMNS), copy=False)
        source = trace.table
        table = pd.DataFrame({"request_id": source["request_id"].to_numpy()})
        for column in ("session_id", "turn", *CLASS_COLUMNS):
            if column in source:
                table[column] = source[column].to_numpy()
        table["server"] = server_of
        statuses = np.asarray(STATUSES)[recorded["status"].to_numpy()]
        table["status"] = pd.Categorical(statuses, categories=list(STATUSES))
        table["error"] = pd.Series(errors, index=table.index, dtype="object")
        table["arrival_time"] = seconds(recorded["arrival_ns"].to_numpy())
        # A simulated request is issued exactly when it is meant to be: it has no lag.
        table["replay_lag"] = pd.Series(lags, index=table.index, dtype=np.float64) * NS
        for name in ("first_scheduled", "first_token", "finish"):
            table[f"{name}_time"] = seconds(recorded[f"{name}_ns"].to_numpy())
        table["num_prompt_tokens"] = source["num_prompt_tokens"].to_numpy()
        table["num_sequences"] = trace.num_sequences
        table["num_requested_tokens"] = source["num_output_tokens"].to_numpy() * trace.num_sequences
        for column in REQUEST_COLUMNS[REQUEST_COLUMNS.index("num_output_tokens") :]:
            table[column] = recorded[column].to_numpy()
        if not self._has_store:
            del table["num_store_cached_tokens"]
        if prompts:
            rows, (servers, ends_ns) = [*prompts], np.array([*prompts.values()]).T
            table["prefill_server"] = pd.Series(servers, rows).reindex(table.index, fill_value=-1)
            table["prefill_end_time"] = pd.Series(ends_ns * NS, rows).reindex(table.index)
        table["parked_time"] = pd.Series(parked_ns, table.index, float).fillna(0.0) * NS
        return with_latencies(table, recorded)

    def _steps(self) -> pd.DataFrame:
        """A row per step, by the time when it began, of several that began together in the order of the servers."""
        tables = [server.steps() for server in self.servers]
        starts = [columns["start_time"] for columns in tables]
        order = np.argsort(np.concatenate(starts), kind="stable")
        servers = [np.full(len(times), number) for number, times in enumerate(starts)]
        steps = {"step": np.arange(len(order)), "server": _in_order(servers, order)}
        for name in [*tables[0]]:  # no more than one column is there twice
            steps[name] = _in_order([columns.pop(name) for columns in tables], order)
        return pd.DataFrame(steps, copy=False)

    def _spans(self, request_ids: np.ndarray) -> pd.DataFrame | None:
        tables = [table for server in self.servers if (table := server.span_table(request_ids)) is not None]
        return pd.concat(tables, ignore_index=True) if len(tables) > 1 else tables[0] if tables else None


def _in_order(parts: Sequence[np.ndarray], order: np.ndarray) -> np.ndarray:
    """A column of the steps of all servers; of zeros that are never written, the system keeps no memory."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts)[order] if any(map(np.any, parts)) else np.zeros(len(order), parts[0].dtype)


def _merged_gaps(gaps: Sequence[Gaps]) -> Gaps:
    if len(gaps) == 1:
        return gaps[0]
    return Gaps(np.concatenate([each.values for each in gaps]), np.concatenate([each.weights for each in gaps]))
