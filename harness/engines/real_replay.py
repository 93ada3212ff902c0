"""Replays a trace on a real clock: requests are issued when they are due, however busy the engine is.

`replay_paced` runs on the clock of an earlier run instead: the engine receives the same requests at the same times and
makes the same plans, so that each of its steps can be timed once more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from engine.api.llm_engine import LLMEngine
from engine.api.step_report import ExecutedPlan, StepReport
from engine.core.sequence import Request, RequestRefusedError
from engine.sampling_params import SamplingParams
from engine.switching import quick_switches
from harness.record.issued import Issued
from harness.workload.token_ids import PromptSource
from simulator.arrivals import NEVER, Arrivals

_NAP_S = 0.5  # longest wait between two looks at whether to stop


class LiveObserver(Protocol):
    """Is told of every event of a replay."""

    def on_issued(self, issued: Issued, now_ns: int) -> None:
        """The engine was handed a request at `now_ns`, between two plans."""

    def on_refused(self, request: Request, reason: str) -> None: ...

    def on_report(self, report: StepReport) -> None: ...


class Clock:
    """Nanoseconds since the start of the replay."""

    def __init__(self) -> None:
        self._start = time.perf_counter_ns()

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._start


class IssueThread:
    """Issues arrivals when they are due, in a thread of its own that never waits for the engine.

    Every request issued up to the time that `collect` returns has been collected, and none issued later: both are
    decided under one lock, so the order of events is the one that a simulation of the same arrivals has.
    """

    def __init__(self, arrivals: Arrivals, clock: Clock) -> None:
        self._arrivals = arrivals
        self._clock = clock
        self._changed = threading.Condition()
        self._issued: list[Issued] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="issue", daemon=True)
        self._thread.start()

    def collect(self) -> tuple[int, list[Issued]]:
        """The time, and the requests that were issued since the last call."""
        with self._changed:
            issued, self._issued = self._issued, []
            return self._clock.now_ns(), issued

    def wait(self) -> bool:
        """Wait until a request is issued, half a second at most; False when no request is left to issue."""
        with self._changed:
            if not self._issued and self._arrivals.next_ns == NEVER:
                return False
            self._changed.wait_for(lambda: self._issued, timeout=_NAP_S)
            return True

    def on_finish(self, row: int, now_ns: int) -> None:
        with self._changed:
            self._arrivals.on_finish(row, now_ns)
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._stopping:
                now = self._clock.now_ns()
                due = self._arrivals.pop_due(now) if self._arrivals.next_ns <= now else []
                if due:
                    self._issued += [Issued(row, arrival, now) for arrival, row in due]
                    self._changed.notify_all()
                    continue
                self._changed.wait(min((self._arrivals.next_ns - now) * 1e-9, _NAP_S))


@dataclass(frozen=True)
class Intake:
    """Hands requests to an engine and reports them to an observer.

    Attributes:
        params: sampling parameters of a request with `num_tokens` output tokens.
        unfinished: the requests that the engine has accepted and not finished, by id.
    """

    engine: LLMEngine
    prompts: PromptSource
    observer: LiveObserver
    params: Callable[[int], SamplingParams]
    unfinished: dict[int, Request] = field(default_factory=dict)

    def hand_over(self, issued: Issued, now_ns: int) -> bool:
        """Make and queue a request that was issued; False where it is refused."""
        return self.queue(issued, self.prompts.make(issued.row, issued.arrival_ns), now_ns)

    def queue(self, issued: Issued, request: Request, now_ns: int) -> bool:
        """Queue a request that was made when it was issued; False where it is refused."""
        self.observer.on_issued(issued, now_ns)
        try:
            self.engine.add(request, self.params(request.max_tokens))
        except RequestRefusedError as refusal:
            self.observer.on_refused(request, str(refusal))
            return False
        self.unfinished[request.request_id] = request
        return True

    def commit(self, executed: ExecutedPlan, now_ns: int) -> list[Request]:
        """Account for a plan that ended at `now_ns`; returns who finished."""
        report = self.engine.commit(executed, now_ns)
        self.observer.on_report(report)
        for request in report.outcome.finished:
            self.prompts.on_finish(request)
            del self.unfinished[request.request_id]
        return report.outcome.finished


class Replay:
    """Drives an engine through a trace with forced output lengths; `stop` ends it after the plan under way."""

    def __init__(self, intake: Intake, arrivals: Arrivals) -> None:
        self._intake = intake
        self._arrivals = arrivals
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        """Serve until everything is done or `stop` was called. The clock starts now."""
        clock = Clock()
        with quick_switches():
            issuer = IssueThread(self._arrivals, clock)
            try:
                self._serve(issuer)
            finally:
                issuer.stop()

    def _serve(self, issuer: IssueThread) -> None:
        intake = self._intake
        now, issued = issuer.collect()
        while not self._stopping:
            for each in issued:
                if not intake.hand_over(each, now):
                    issuer.on_finish(each.row, now)
            executed = intake.engine.execute(now)
            # Requests issued while the plan ran are seen at its end, as in the simulation.
            now, issued = issuer.collect()
            if executed is None:
                if not issued and not issuer.wait():
                    return
                now, more = issuer.collect()
                issued += more
                continue
            for request in intake.commit(executed, now):
                issuer.on_finish(request.request_id, now)
