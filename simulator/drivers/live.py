"""One server in real time: its steps end when a clock says so, and requests come while they run.

Times are those of the simulation, so that lateness of this process does not add up: a step that is ended late began
where the one before it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from engine.core.plan import StepPlan
from engine.core.sequence import Request
from simulator.arrivals import NEVER
from simulator.decode_run import Run
from simulator.drivers.agenda import Agenda
from simulator.replica import Replica


class Teller(Protocol):
    """Tells clients what the steps of a server bring."""

    def prepare(self, plan: StepPlan, due_ns: int) -> int:
        """A plan began whose only step ends at `due_ns`; what is done here has the time that it takes. Returns how long
        `send` will take, about; 0 where there is nothing to send."""

    def send(self) -> None:
        """Tell what was prepared, about when it is due; the plan is committed after that, and not before it is due."""


class Live:
    """Runs a replica. The clock is `time.monotonic_ns`.

    Args:
        agenda: of all servers of the process.

    Raises:
        ValueError: the replica prices many steps at once, which could not be told one by one.
    """

    def __init__(self, replica: Replica, agenda: Agenda, teller: Teller) -> None:
        if replica.compress:
            raise ValueError("in real time each step is priced on its own")
        self._replica = replica
        self._agenda = agenda
        self._teller = teller
        self._plan: StepPlan | None = None  # made ahead
        self._is_idle = True
        self._last_ns = 0  # of the simulation: no request is taken for one that came before
        self._number = 0  # of the event that is expected: one that was expected before is out of date

    def submit(self, requests: Iterable[Request], received_ns: int, *, have_arrived: bool = False) -> None:
        """Take requests that the engine received at `received_ns`, together; what was done since then to read them
        costs no time of the simulation. That is also when they arrive, unless they have before."""
        now = self._last_ns = max(received_ns, self._last_ns)
        for request in requests:
            if not have_arrived:
                request.arrival_time = now
            self._replica.submit(request, now)
        if self._is_idle:
            self._begin(now)

    def _begin(self, now: int) -> None:
        """Plan at `now`, a time of the simulation, which has passed."""
        replica = self._replica
        self._last_ns = max(now, self._last_ns)
        self._number += 1
        plan = self._plan or replica.plan(now)
        self._plan = None
        self._is_idle = plan is None
        if plan is not None:
            price = replica.price(plan, now)
            due_ns = now + (price if isinstance(price, int) else price.end)
            end = partial(self._expected, self._number, partial(self._end, plan, now, price))
            if length_ns := self._teller.prepare(plan, due_ns):
                tell = partial(self._expected, self._number, partial(self._tell, due_ns, end))
                self._agenda.send(due_ns, length_ns, tell)
            else:
                self._agenda.work(due_ns, end)
        elif (wake_at := replica.wake_ns()) != NEVER:
            self._agenda.work(wake_at, partial(self._expected, self._number, partial(self._begin, wake_at)))

    def _expected(self, number: int, call: Callable[[], None]) -> None:
        if number == self._number and not self._replica.is_stopping:
            call()

    def _tell(self, due_ns: int, end: Callable[[], None]) -> None:
        self._teller.send()
        self._agenda.work(due_ns, end)

    def _end(self, plan: StepPlan, start: int, price: int | Run) -> None:
        self._plan, end = self._replica.finish(plan, start, price)
        self._begin(end)

    def close(self) -> None:
        """Let no more time pass."""
        self._replica.is_stopping = True
