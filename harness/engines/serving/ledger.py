"""What a server records of the requests that it has served, in the tables of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.plan import StepOutcome
from engine.core.sequence import Request
from harness.config import RunConfig
from harness.record.record import Record
from harness.record.recorder import Recorder
from harness.record.request_row import REQUEST_COLUMNS
from harness.record.request_times import NS, UNSET
from harness.results.metrics import summarize
from harness.results.stored.environment import environment
from harness.results.stored.files import write_results
from harness.results.tables import RunResult
from harness.workload.trace import Trace, trace_table

_TIMES = [number for number, name in enumerate(REQUEST_COLUMNS) if name.endswith("_ns")]
_ARRIVAL = REQUEST_COLUMNS.index("arrival_ns")


class Ledger(Recorder):
    """Records the steps of a server and the requests that it has finished, whose rows are in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[int, tuple[int, int, int]] = {}  # by id: prompt tokens, output tokens asked for, sequences

    def on_commit(self, outcome: StepOutcome) -> None:
        super().on_commit(outcome)
        for each in outcome.finished:
            self._asked[each.request_id] = each.num_prompt_tokens, each.max_tokens, each.num_sequences

    def end(self, unfinished: Sequence[Request]) -> None:
        super().end(())
        rows = super().request_rows()
        self._rows = rows[np.argsort(rows[:, _ARRIVAL], kind="stable")]
        self._row_of = {number: row for row, number in enumerate(self._rows[:, 0].tolist())}
        self._start_ns = self._rows[0, _ARRIVAL] if len(rows) else 0

    def request_rows(self) -> NDArray[np.int64]:
        rows = self._rows.copy()
        rows[:, 0] = np.arange(len(rows))
        rows[:, _TIMES] -= np.where(rows[:, _TIMES] == UNSET, 0, self._start_ns)
        return rows

    @property
    def parked_ns(self) -> Mapping[int, int]:
        return {self._row_of[number]: ns for number, ns in super().parked_ns.items() if number in self._row_of}

    def steps(self) -> dict[str, Any]:
        columns = super().steps()
        return {**columns, "start_time": columns["start_time"] - self._start_ns * NS}

    def trace(self) -> Trace:
        """The requests that were served."""
        rows = [self._asked[number] for number in self._row_of]
        prompt, output, samples = (list(values) for values in zip(*rows, strict=True))
        times = (self._rows[:, _ARRIVAL] - self._start_ns) * NS
        columns = {"num_prompt_tokens": prompt, "num_output_tokens": output, "n": samples, "arrival_time": times}
        return Trace("served", trace_table(columns), "requests of clients")


def write_served(ledger: Ledger, config: RunConfig, num_blocks: int, folder: Path) -> None:
    """Write the tables and the summary of what was served; nothing where nothing was."""
    ledger.end(())
    if not len(ledger.request_rows()):
        return
    trace = ledger.trace()
    recorded = Record([ledger]).tables(trace, [()])
    meta = {
        "engine": config.engine.kind,
        "simulated": config.engine.kind == "sim",
        "model": config.model.name,
        "device": config.device.name,
        "tensor_parallel_size": config.tensor_parallel_size,
        "trace": trace.name,
        "arrival": "trace",
        "policy": config.scheduler.policy,
        "config": config.model_dump(mode="json"),
        "environment": environment(),
    }
    result = RunResult(recorded.requests, recorded.steps, recorded.gaps, num_blocks, config.block_size, True, meta)
    write_results(result, summarize(result, config.metrics), folder)
