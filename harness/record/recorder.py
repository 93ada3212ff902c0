"""Records what a server does in flat integer buffers, while a run goes on.

Per plan one row of counts, per step one duration, per block growth inside a plan one triple, per request one row, and
with speculation one row of drafts per decode step.
A million steps take about 100 MB and no Python objects. Any engine that reports plans can be recorded.
"""

from __future__ import annotations

from array import array
from collections import abc
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.core.plan import PlanStart, StepOutcome, StepPlan
from engine.core.sequence import Request
from harness.record.plan_log import PLAN_COLUMNS, PlanLog
from harness.record.recorded import Recorded
from harness.record.request_times import token_gaps
from harness.record.span_log import SpanLog
from harness.record.step_columns import TIME_COLUMNS, StepLog, matrix, table_of
from simulator.decode_run import Durations
from simulator.table import Table

if TYPE_CHECKING:  # the real engine brings torch
    from engine.api.step_report import StepReport
    from harness.record.issued import Issued

STATUSES = ("finished", "rejected", "aborted", "unfinished")


class Recorder:
    """Observer of a server; `now_ns` and `num_done` (requests finished or refused) tell how far it is.

    Args:
        reserves: whether blocks are handed out as contiguous reservations, which decodes use up.
    """

    def __init__(self, *, reserves: bool = False) -> None:
        self._reserves = reserves
        self.num_done = 0
        self._log = PlanLog()
        self.errors: dict[int, str] = {}  # why requests were refused, by row
        self.lags: dict[int, int] = {}  # how much later than intended requests were issued, by row
        self._times = array("q")
        self._spans: SpanLog | None = None

    def record_spans(self) -> None:
        """Also record what each sequence does when; to be called before the run."""
        self._spans = SpanLog()

    @property
    def now_ns(self) -> int:
        start, durations = self._log.last_start_ns, self._log.last_ns
        return start + (durations if isinstance(durations, int) else int(np.sum(durations)))

    # -- while the run goes on ------------------------------------------------------------------------------------

    def on_refused(self, request: Request, reason: str) -> None:
        self.errors[request.request_id] = reason
        self._add_request(request, STATUSES.index("rejected"))
        self.num_done += 1

    def on_lost(self, request: Request, now_ns: int) -> None:
        """The server died, and nobody serves the request any more."""
        self.errors[request.request_id] = "its server died"
        request.finish_time = now_ns
        self._add_request(request, STATUSES.index("aborted"))
        self.num_done += 1

    def on_step(
        self,
        plan: StepPlan,
        start_ns: int,
        durations_ns: Durations | int,
        start: PlanStart | None = None,
    ) -> None:
        """A plan ran; `start` is what was known when it began, by default what is known now."""
        first_end = self._log.add(plan, start_ns, durations_ns, start)
        if self._spans is not None:
            self._spans.add(plan, start_ns, first_end)

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None:
        """The plan that is recorded next waits so long for its transfers."""
        self._log.transfers.add(self._log.num_plans, plan, wait_ns)

    def on_commit(self, outcome: StepOutcome) -> None:
        self.num_done += self._log.note_outcome(outcome)
        if self._spans is not None:
            self._spans.note_ended(self.now_ns)
            for request in outcome.finished:
                if not request.decodes_elsewhere:
                    self._spans.close(request, request.finish_time)

    def on_issued(self, issued: Issued, now_ns: int) -> None:
        """A request was issued on a real clock, this much later than intended."""
        self.lags[issued.row] = issued.issued_ns - issued.arrival_ns

    def on_report(self, report: StepReport) -> None:
        """A plan ran on a real engine. Only the whole is timed, so its steps share the time evenly."""
        plan = report.plan
        each, rest = divmod(report.end_ns - report.start_ns, plan.num_steps)
        durations = np.full(plan.num_steps, each)
        durations[:rest] += 1
        times = report.times
        if plan.transfers:
            self.on_transfers(plan, times.transfer_ns)
        self.on_step(plan, report.start_ns, durations, report.start)
        self._times.extend((times.schedule_ns, times.prepare_ns, times.execute_ns, times.sample_ns))
        self.on_commit(report.outcome)

    def _add_request(self, request: Request, status: int) -> None:
        if self._spans is not None:
            is_rejected = STATUSES[status] == "rejected"
            self._spans.close(request, request.arrival_time if is_rejected else request.finish_time)
        self._log.add_request(request, status)

    # -- afterwards -----------------------------------------------------------------------------------------------

    def end(self, unfinished: abc.Sequence[Request]) -> None:
        """The run has ended with these requests waiting or running; to be called before what follows is asked for."""
        self._drop_half_recorded()
        for request in unfinished:
            self._add_request(request, STATUSES.index("unfinished"))

    def forget(self) -> None:
        """Let go of plans and requests."""
        self._log.clear()

    def recorded(self) -> Recorded:
        log = self._log
        gaps = token_gaps(self._plan_table(), self._step_durations(), log.single_gaps)
        return Recorded(
            log.requests.matrix(), self.errors, self.lags, log.prompts, log.transfers.parked_ns, gaps, self._step_log(),
            self._spans,
        )  # fmt: skip

    def _step_log(self) -> StepLog:
        return StepLog(
            self._log.plans.matrix(), self._step_durations(), matrix(self._log.growth, 3),
            matrix(self._log.drafts, 4), matrix(self._times, len(TIME_COLUMNS)), self._log.transfers.rows,
            self._reserves,
        )  # fmt: skip

    def _plan_table(self) -> Table:
        return table_of(self._log.plans.matrix(), PLAN_COLUMNS)

    def _step_durations(self) -> NDArray[np.int64]:
        return np.frombuffer(self._log.durations, dtype=np.int64)

    def _drop_half_recorded(self) -> None:
        """Remove what a plan left whose recording was cut short by an exception, such as MemoryError."""
        num_plans, width = self._log.num_plans, len(TIME_COLUMNS)
        if self._times:
            num_plans = min(num_plans, len(self._times) // width)
        self._log.keep(num_plans)
        del self._times[num_plans * width :]
