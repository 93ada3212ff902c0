"""What a server records of the requests that it has served, in the tables of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.core.plan import StepOutcome
from engine.core.sequence import Request
from harness.config import RunConfig
from harness.record.record import Record
from harness.record.recorder import Recorder
from harness.record.request_row import REQUEST_COLUMNS
from harness.record.request_times import NS, UNSET
from harness.record.step_columns import StepLog
from harness.results.metrics import summarize
from harness.results.stored.environment import environment
from harness.results.stored.files import write_results
from harness.results.tables import RunResult
from harness.workload.trace import Trace, trace_table

_TIMES = [number for number, name in enumerate(REQUEST_COLUMNS) if name.endswith("_ns")]
_SENT = [REQUEST_COLUMNS.index(name) for name in ("first_token_ns", "finish_ns")]
_ARRIVAL = REQUEST_COLUMNS.index("arrival_ns")


class Ledger(Recorder):
    """Records the steps of a server and the requests that it has finished; `place` says which rows these are."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[int, tuple[int, int]] = {}  # by id: when its first and its last tokens were sent
        self._asked: dict[int, tuple[int, int, int]] = {}  # by id: prompt tokens, output tokens asked for, sequences

    def on_commit(self, outcome: StepOutcome) -> None:
        super().on_commit(outcome)
        for each in outcome.finished:
            self._asked[each.request_id] = each.num_prompt_tokens, each.max_tokens, each.num_sequences

    def on_sent(self, number: int, first_ns: int, last_ns: int) -> None:
        """The tokens of a request of a real server were sent, which is what its record says instead of when their
        steps ended: another thread has to write them, and it may have to wait for its turn."""
        self._sent[number] = first_ns, last_ns

    def end(self, unfinished: Sequence[Request]) -> None:
        super().end(())
        rows = super().request_rows()
        for row in rows:
            if (sent := self._sent.get(int(row[0]))) is not None:
                row[_SENT] = sent
        self._rows = rows[np.argsort(rows[:, _ARRIVAL], kind="stable")]

    def arrivals(self) -> list[tuple[int, int]]:
        """When each request arrived, and its id, in order."""
        return [(arrival, number) for number, arrival in self._rows[:, [0, _ARRIVAL]].tolist()]

    def place(self, row_of: Mapping[int, int], start_ns: int) -> None:
        """Put the requests into these rows of the table of all servers, whose times count from `start_ns`."""
        self._row_of = row_of
        self._start_ns = start_ns

    def request_rows(self) -> NDArray[np.int64]:
        rows = self._rows.copy()
        rows[:, 0] = [self._row_of[number] for number in rows[:, 0].tolist()]
        rows[:, _TIMES] -= np.where(rows[:, _TIMES] == UNSET, 0, self._start_ns)
        return rows

    @property
    def parked_ns(self) -> Mapping[int, int]:
        return {self._row_of[number]: ns for number, ns in super().parked_ns.items() if number in self._row_of}

    def step_log(self) -> StepLog:
        return super().step_log()._replace(origin_ns=self._start_ns)

    def asked(self, number: int) -> tuple[int, int, int]:
        """Prompt tokens, output tokens asked for and sequences of a request that has finished."""
        return self._asked[number]


def served_trace(ledgers: Sequence[Ledger]) -> Trace | None:
    """The requests that servers have finished, in order of arrival, as their rows are from now on; None without any."""
    for each in ledgers:
        each.end(())
    arrived = sorted(
        (arrival, number, ledger) for ledger, each in enumerate(ledgers) for arrival, number in each.arrivals()
    )
    if not arrived:
        return None
    start_ns = arrived[0][0]
    row_of = {number: row for row, (_, number, _) in enumerate(arrived)}
    for each in ledgers:
        each.place(row_of, start_ns)
    asked = [ledgers[ledger].asked(number) for _, number, ledger in arrived]
    prompt, output, samples = (list(values) for values in zip(*asked, strict=True))
    times = (np.array([arrival for arrival, _, _ in arrived]) - start_ns) * NS
    columns = {"num_prompt_tokens": prompt, "num_output_tokens": output, "n": samples, "arrival_time": times}
    return Trace("served", trace_table(columns), "requests of clients")


def write_served(ledgers: Sequence[Ledger], config: RunConfig, num_blocks: int, folder: Path) -> None:
    """Write the tables and the summary of what was served; nothing where nothing was."""
    trace = served_trace(ledgers)
    if trace is None:
        return
    recorded = Record(ledgers).tables(trace, [()] * len(ledgers))
    meta = {
        "engine": config.engine.kind,
        "simulated": config.engine.kind == "sim",
        "model": config.model.name,
        "device": config.device.name,
        "tensor_parallel_size": config.tensor_parallel_size,
        "num_servers": len(ledgers),
        "trace": trace.name,
        "arrival": "trace",
        "policy": config.scheduler.policy,
        "config": config.model_dump(mode="json"),
        "environment": environment(),
    }
    result = RunResult(
        recorded.request_rows, recorded.step_rows, recorded.gaps, num_blocks, config.block_size, True, meta
    )
    write_results(result, summarize(result, config.metrics), folder)
