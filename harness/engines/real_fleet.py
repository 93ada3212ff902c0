"""Several real engines behind a router, on a real clock: a thread for each engine, and one that issues and routes.

    arrivals ──due──▶ route: the rule of a simulated fleet, on what it sees of the engines ──▶ inbox of the engine
    engine:  take the inbox ──▶ plan and execute ──▶ commit ──▶ ...

All that a rule reads or writes happens under one lock and has a time of the clock, so that a simulation of the same
arrivals, with the measured durations of the steps, decides the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from engine.api.step_report import ExecutedPlan
from engine.core.routing.router import Router
from engine.core.sequence import Request, RequestRefusedError
from harness.engines.real_replay import Clock, Intake
from harness.record.issued import Issued
from simulator.arrivals import NEVER, Arrivals
from simulator.fleets.desk import Desk

_NAP_S = 0.5  # longest wait between two looks at whether to stop


class EngineServer:
    """An engine as the desk and its views take a server."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.observer = intake.observer
        self.scheduler = intake.engine.scheduler
        self.compress = False
        self.on_first_token: Callable[[Request], None] | None = None
        self.on_statistics: Callable[[], None] | None = None
        self.inbox: deque[tuple[Issued, Request]] = deque()

    @property
    def num_waiting(self) -> int:
        return self.scheduler.num_waiting + len(self.inbox)

    def num_free_blocks(self, now: int) -> int:
        return self.scheduler.blocks.num_free_blocks

    def submit(self, request: Request, now: int) -> None:
        """Take a request that was issued now; it is queued before the next plan."""
        self.inbox.append((Issued(request.request_id, request.arrival_time, now), request))


class FleetReplay:
    """Drives engines through a trace with forced output lengths; `stop` ends it after the plans under way."""

    def __init__(self, intakes: Sequence[Intake], arrivals: Arrivals, rule: Router) -> None:
        self._arrivals = arrivals
        self._servers = [EngineServer(intake) for intake in intakes]
        self._changed = threading.Condition()
        self._desk = Desk(self._servers, rule, lambda: self._clock.now_ns())
        self._hashes = rule.reads_prefixes or rule.reads_caches
        self._is_over = False
        self._failure: BaseException | None = None

    def stop(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def run(self) -> None:
        """Serve until everything is done or `stop` was called, or raise what an engine raised. The clock starts now."""
        self._clock = Clock()
        threads = [
            threading.Thread(target=self._drive, args=(number,), name=f"server {number}", daemon=True)
            for number in range(len(self._servers))
        ]
        for thread in threads:
            thread.start()
        try:
            self._issue()
        finally:
            self.stop()
            for thread in threads:
                thread.join()
        if self._failure is not None:
            raise self._failure

    def _issue(self) -> None:
        with self._changed:
            while not self._is_over:
                now = self._clock.now_ns()
                due = self._arrivals.pop_due(now) if self._arrivals.next_ns <= now else []
                for arrival, row in due:
                    self._route(Issued(row, arrival, now))
                if due:
                    self._changed.notify_all()
                elif self._arrivals.next_ns == NEVER and not any(view.num_requests for view in self._desk.views):
                    return
                else:
                    self._changed.wait(min((self._arrivals.next_ns - now) * 1e-9, _NAP_S))

    def _route(self, issued: Issued) -> None:
        """Choose the engine of a request at the time it is issued."""
        request = self._servers[0].intake.prompts.make(issued.row, issued.arrival_ns)
        (first, *_), size = request.sequences, self._servers[0].scheduler.blocks.block_size
        if self._hashes:
            first.hash_blocks(size, request.num_prompt_tokens // size)
        number = self._desk.choose(request)
        server, view = self._servers[number], self._desk.views[number]
        try:
            view.check(request)
        except RequestRefusedError as refusal:
            server.intake.observer.on_issued(issued, issued.issued_ns)
            server.observer.on_refused(request, str(refusal))
            self._arrivals.on_finish(issued.row, issued.issued_ns)
            return
        view.count(request)
        view.submit(request, issued.issued_ns)

    def _drive(self, number: int) -> None:
        """The loop of an engine. One that was idle begins at the time when its next request was issued."""
        server, executed = self._servers[number], None
        try:
            while (now := self._turn(number, executed)) is not None:
                executed = server.intake.engine.execute(now)
        except BaseException as error:  # handed to the thread that runs
            self._failure = error
            self.stop()

    def _turn(self, number: int, executed: ExecutedPlan | None) -> int | None:
        """Commit what ran, and take the requests that have come; returns the time, or None at the end."""
        server = self._servers[number]
        with self._changed:
            now = self._clock.now_ns()
            if executed is not None:
                ended = server.intake.commit(executed, now)
                if server.on_first_token is not None:
                    for request in executed.plan.first_tokens(now):
                        server.on_first_token(request)
                for request in ended:
                    self._desk.views[number].forget(request)
                    self._arrivals.on_finish(request.request_id, now)
                self._changed.notify_all()
            elif not server.inbox:
                self._changed.wait_for(lambda: server.inbox or self._is_over)
                now = server.inbox[0][0].issued_ns if server.inbox else now
            else:
                now = server.inbox[0][0].issued_ns
            while server.inbox and server.inbox[0][0].issued_ns <= now:
                server.intake.queue(*server.inbox.popleft(), now)
            return None if self._is_over else now
