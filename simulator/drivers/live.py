"""One server in real time: its steps end when a clock says so, and requests come while they run.

Times are those of the simulation, so that lateness of this process does not add up: a step that is ended late began
where the one before it ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial

from engine.core.plan import StepPlan
from engine.core.sequence import Request
from simulator.arrivals import NEVER
from simulator.drivers.alarm import Alarm
from simulator.replica import Replica, Run


class Live:
    """Runs a replica in an event loop. The clock is `time.monotonic_ns`.

    Args:
        on_begun: told of each plan that begins; what it does has the time that the step takes.

    Raises:
        ValueError: the replica prices many steps at once, which could not be told one by one.
    """

    def __init__(
        self,
        replica: Replica,
        loop: asyncio.AbstractEventLoop,
        on_begun: Callable[[StepPlan], None] = lambda plan: None,
    ) -> None:
        if replica.compress:
            raise ValueError("in real time each step is priced on its own")
        self._replica = replica
        self._loop = loop
        self._alarm = Alarm(loop)
        self._on_begun = on_begun
        self._plan: StepPlan | None = None  # made ahead
        self._is_idle = True
        self._last_ns = 0  # of the simulation: no request is taken for one that came before
        self._number = 0  # of the event that is expected: one that was expected before is out of date

    def submit(self, requests: Iterable[Request], received_ns: int) -> None:
        """Take requests that arrived at `received_ns`, together; what was done since then to read them costs no time of
        the simulation."""
        now = self._last_ns = max(received_ns, self._last_ns)
        for request in requests:
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
            self._on_begun(plan)
            due_ns = now + (price if isinstance(price, int) else price[1].item(-1))
            # Not at once, even where it is late: what the step before brought is written first.
            self._loop.call_soon(self._at, due_ns, self._number, plan, now, price)
        elif (wake_at := replica.wake_ns()) != NEVER:
            self._at(wake_at, self._number, None, 0, 0)

    def _at(self, due_ns: int, number: int, plan: StepPlan | None, start: int, price: int | Run) -> None:
        if number != self._number or self._replica.is_stopping:
            return
        if due_ns > time.monotonic_ns():
            self._alarm.set(due_ns, partial(self._at, due_ns, number, plan, start, price))
        elif plan is None:
            self._begin(due_ns)
        else:
            self._plan, end = self._replica.finish(plan, start, price)
            self._begin(end)

    def close(self) -> None:
        """Let no more time pass."""
        self._replica.is_stopping = True
        self._alarm.close()
