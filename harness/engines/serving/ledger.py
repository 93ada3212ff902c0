"""What a server records of the requests that it has served, in the tables of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.core.plan import StepOutcome, StepPlan
from engine.core.sequence import Request
from harness.config import RunConfig
from harness.record.record import recorded_run
from harness.record.recorded import Recorded
from harness.record.recorder import Recorder
from harness.record.request_row import REQUEST_COLUMNS
from harness.record.request_times import NS, UNSET
from harness.results.metrics import summarize
from harness.results.stored.environment import environment
from harness.results.stored.files import write_results
from harness.results.tables import RunResult
from harness.workload.trace import Trace, trace_table
from simulator.decode_run import Durations

if TYPE_CHECKING:  # the real engine brings torch
    from engine.api.step_report import StepReport

_TIMES = [number for number, name in enumerate(REQUEST_COLUMNS) if name.endswith("_ns")]
_SENT = [REQUEST_COLUMNS.index(name) for name in ("first_token_ns", "finish_ns")]
_ARRIVAL = REQUEST_COLUMNS.index("arrival_ns")


class Ledger:
    """Records the steps of a server and the requests that it has finished."""

    def __init__(self) -> None:
        self._recorder = Recorder()
        self._sent: dict[int, tuple[int, int]] = {}  # by id: when its first and its last tokens were sent
        self._asked: dict[int, tuple[int, int, int]] = {}  # by id: prompt tokens, output tokens asked for, sequences

    def on_refused(self, request: Request, reason: str) -> None:
        """Not called: a server refuses calls before they become requests."""

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None:
        self._recorder.on_transfers(plan, wait_ns)

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Durations | int) -> None:
        self._recorder.on_step(plan, start_ns, durations_ns)

    def on_commit(self, outcome: StepOutcome) -> None:
        self._recorder.on_commit(outcome)
        self._note(outcome)

    def on_report(self, report: StepReport) -> None:
        """A plan ran on a real engine."""
        self._recorder.on_report(report)
        self._note(report.outcome)

    def _note(self, outcome: StepOutcome) -> None:
        for each in outcome.finished:
            self._asked[each.request_id] = each.num_prompt_tokens, each.max_tokens, each.num_sequences

    def on_sent(self, number: int, first_ns: int, last_ns: int) -> None:
        """The tokens of a request of a real server were sent, which is what its record says instead of when their
        steps ended: another thread has to write them, and it may have to wait for its turn."""
        self._sent[number] = first_ns, last_ns

    def recorded(self) -> Recorded:
        """What was recorded of requests that have finished: by their ids, in order of arrival."""
        self._recorder.end(())
        recorded = self._recorder.recorded()
        rows = recorded.request_rows
        rows = rows[np.argsort(rows[:, _ARRIVAL], kind="stable")]
        for row in rows:
            if (sent := self._sent.get(int(row[0]))) is not None:
                row[_SENT] = sent
        return recorded._replace(request_rows=rows)

    def asked(self, number: int) -> tuple[int, int, int]:
        """Prompt tokens, output tokens asked for and sequences of a request that has finished."""
        return self._asked[number]


def served_trace(ledgers: Sequence[Ledger]) -> tuple[Trace, list[Recorded]] | None:
    """The requests that servers have finished, in order of arrival, and what was recorded, by their rows there and with
    times since the first arrival; None without any."""
    servers = [each.recorded() for each in ledgers]
    arrived = sorted(
        (arrival, request, number)
        for number, each in enumerate(servers)
        for request, arrival in each.request_rows[:, [0, _ARRIVAL]].tolist()
    )
    if not arrived:
        return None
    start_ns = arrived[0][0]
    row_of = {request: row for row, (_, request, _) in enumerate(arrived)}
    asked = [ledgers[number].asked(request) for _, request, number in arrived]
    prompt, output, samples = (list(values) for values in zip(*asked, strict=True))
    times = (np.array([arrival for arrival, _, _ in arrived]) - start_ns) * NS
    columns = {"num_prompt_tokens": prompt, "num_output_tokens": output, "n": samples, "arrival_time": times}
    trace = Trace("served", trace_table(columns), "requests of clients")
    return trace, [_placed(each, row_of, start_ns) for each in servers]


def _placed(server: Recorded, row_of: Mapping[int, int], start_ns: int) -> Recorded:
    rows = server.request_rows.copy()
    rows[:, 0] = [row_of[request] for request in rows[:, 0].tolist()]
    rows[:, _TIMES] -= np.where(rows[:, _TIMES] == UNSET, 0, start_ns)
    parked_ns = {row_of[request]: ns for request, ns in server.parked_ns.items() if request in row_of}
    return server._replace(request_rows=rows, parked_ns=parked_ns, steps=server.steps._replace(origin_ns=start_ns))


def write_served(ledgers: Sequence[Ledger], config: RunConfig, num_blocks: int, folder: Path) -> None:
    """Write the tables and the summary of what was served; nothing where nothing was."""
    served = served_trace(ledgers)
    if served is None:
        return
    trace, servers = served
    recorded = recorded_run(servers, trace)
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
