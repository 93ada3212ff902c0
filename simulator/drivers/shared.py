"""A server beside others: the end of its run of steps is an event, which a request that arrives brings forward.

Nobody knows when the next request comes, so a run is a few steps at first, and is lengthened whenever its end comes and
no request has.
"""

from __future__ import annotations

from typing import Final

from engine.core.plan import StepPlan
from simulator.arrivals import NEVER
from simulator.decode_run import Run
from simulator.drivers.phases import ENDS, PLANS, moment
from simulator.drivers.timetable import Timed, Timetable
from simulator.replica import Replica

_FIRST_REACH: Final = 8  # steps: a busy server gets a request every few steps, and so few are priced fastest


class Shared(Timed):
    """Runs a replica by a timetable, until nothing is left or it is stopped."""

    def __init__(self, timetable: Timetable, replica: Replica) -> None:
        super().__init__()
        self._timetable = timetable
        self._replica = replica
        self._plan: StepPlan | None = None  # runs, or was made ahead
        self._start = 0
        self._price: int | Run = 0
        self._is_idle = False  # waits for something that a new request would change
        replica.reach = _FIRST_REACH
        replica.on_change = self._wake
        self.due = moment(0, PLANS)
        timetable.add(self)

    def pass_to(self, now: int, phase: int) -> None:
        if phase == ENDS:
            self._end(now)
        else:
            self._begin(now)

    def _begin(self, now: int) -> None:
        replica = self._replica
        self.due = NEVER
        if replica.is_stopping:
            return
        plan = self._plan = self._plan or replica.plan(now)
        self._is_idle = plan is None
        if plan is None:
            self.due = moment(replica.wake_ns(), PLANS)
            return
        self._start = now
        self._run(replica.price(plan, now))

    def _run(self, price: int | Run) -> None:
        """Let the plan run as long as priced, counted from its start."""
        self._price = price
        length = price if isinstance(price, int) else price.end
        self.due = moment(self._start + length, ENDS)

    def _end(self, now: int) -> None:
        replica, plan, price = self._replica, self._plan, self._price
        assert plan is not None
        if plan.horizon > 1 and (longer := replica.lengthen(plan, self._start, price)):
            self._run(longer)
            return
        self._price = 0
        self._plan, _ = replica.finish(plan, self._start, price)
        if self._plan is None and self._timetable.next_ns <= now:
            self.due = moment(now, PLANS)
        else:
            self._begin(now)

    def fail(self) -> None:
        """The server dies: of the steps that were under way, those that have ended count."""
        if self._plan is not None and not isinstance(self._price, int):
            num_ended = self._price.num_up_to(self._timetable.now - self._start)
            if num_ended:
                self._replica.finish(self._plan, self._start, self._price.first(num_ended))
        self._plan, self._price, self._is_idle = None, 0, True
        self._timetable.expect(self, moment(self._timetable.now, PLANS))

    def _wake(self) -> None:
        if self._is_idle:
            self._is_idle = False
            self._timetable.expect(self, moment(self._timetable.now, PLANS))
        elif not isinstance(self._price, int):
            shorter = self._replica.cut(self._start, self._price)
            if isinstance(shorter, int) or shorter.num_steps < self._price.num_steps:
                self._run(shorter)
                self._timetable.expect(self, self.due)
