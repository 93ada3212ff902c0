"""A server beside others: the end of its run of steps is an event, which a request that arrives brings forward.

Nobody knows when the next request comes, so a run is a few steps at first, and is lengthened whenever its end comes and
no request has.
"""

from __future__ import annotations

from engine.core.plan import StepPlan
from simulator.arrivals import NEVER
from simulator.drivers.phases import ENDS, PLANS, Call, Clock
from simulator.drivers.timetable import Timetable
from simulator.replica import Replica, Run

_FIRST_REACH = 8  # steps: a busy server gets a request every few steps, and so few are priced fastest


class Shared:
    """Runs a replica in an environment, until nothing is left or it is stopped."""

    def __init__(self, env: Clock, replica: Replica) -> None:
        self._timetable: Timetable = env.timetable
        self._replica = replica
        self._plan: StepPlan | None = None  # runs, or was made ahead
        self._start = 0
        self._price: int | Run = 0
        self._is_idle = False  # waits for something that a new request would change
        replica.reach = _FIRST_REACH
        replica.on_change = self._wake
        self._next = self._timetable.call(PLANS, 0, self._begin)  # what was expected before it is out of date

    def _begin(self, call: Call) -> None:
        replica, now = self._replica, call[0]
        if call is not self._next or replica.is_stopping:
            return
        plan = self._plan = self._plan or replica.plan(now)
        if plan is None:
            self._is_idle = True
            if (wake_at := replica.wake_ns()) != NEVER:
                self._next = self._timetable.call(PLANS, wake_at - now, self._begin)
            return
        self._is_idle = False
        self._start = now
        self._run(replica.price(plan, now), now)

    def _run(self, price: int | Run, now: int) -> None:
        """Let the plan run as long as priced, counted from its start."""
        self._price = price
        end = price if isinstance(price, int) else price[1].item(-1)
        self._next = self._timetable.call(ENDS, self._start + end - now, self._end)

    def _end(self, call: Call) -> None:
        if call is not self._next:
            return
        timetable, replica, price = self._timetable, self._replica, self._price
        assert self._plan is not None
        if self._plan.horizon > 1 and (longer := replica.lengthen(self._plan, self._start, price)):
            self._run(longer, call[0])
            return
        self._price = 0
        self._plan, _ = replica.finish(self._plan, self._start, price)
        if self._plan is None and not timetable.is_done:
            self._next = timetable.call(PLANS, 0, self._begin)
        else:
            self._begin(call)

    def fail(self) -> None:
        """The server dies: of the steps that were under way, those that have ended count."""
        if self._plan is not None and not isinstance(self._price, int):
            durations, ends = self._price
            if num_ended := int(ends.searchsorted(self._timetable.now - self._start, "right")):
                self._replica.finish(self._plan, self._start, (durations[:num_ended], ends[:num_ended]))
        self._plan, self._price, self._is_idle = None, 0, True
        self._next = self._timetable.call(PLANS, 0, self._begin)

    def _wake(self) -> None:
        if self._is_idle:
            self._is_idle = False
            self._next = self._timetable.call(PLANS, 0, self._begin)
        elif not isinstance(self._price, int):
            shorter = self._replica.cut(self._start, self._price)
            if len(shorter[1]) < len(self._price[1]):
                self._run(shorter, self._timetable.now)
