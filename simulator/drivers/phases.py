"""What comes first of all that happens at the same time, where several servers share a clock.

    ENDS       steps end, and requests with them, which may bring others
    READINGS   a router reads the metrics of the servers
    HANDOVERS  requests whose prompt another server has computed come to the one that decodes them
    ARRIVALS   requests arrive, and the router chooses their servers, on what is known after all ends
    PLANS      servers plan, each on its own
    TRANSFERS  what they asked for of each other's KV begins to move

So it changes nothing in which order servers come to a time.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import simpy

ENDS, READINGS, HANDOVERS, ARRIVALS, PLANS, TRANSFERS = 1, 2, 3, 4, 5, 6  # ENDS is the priority of SimPy's time-outs

Call = tuple[int, int, int, Callable[[Any], None]]
"""Time, phase, how many events were scheduled before, and the function, which is called with all of this."""


class Clock(simpy.Environment):
    """SimPy's environment, which also calls plain functions: an event of SimPy takes three times as long, and every
    step of a server is one."""

    def call(self, phase: int, delay: int, then: Callable[[Any], None]) -> Call:
        """Call `then` in `delay` ns, in a phase of that time."""
        call = (self._now + delay, phase, next(self._eid), then)
        heappush(self._queue, call)
        return call

    @property
    def is_done(self) -> bool:
        """Whether nothing else happens at this time, as far as is known."""
        queue = self._queue
        return not queue or queue[0][0] != self._now

    def run(self, until: None = None) -> None:
        """All events in order until none is left, without SimPy's call for each of them."""
        queue = self._queue
        while queue:
            call = queue[0]
            if isinstance(call[3], simpy.Event):
                self.step()
                continue
            heappop(queue)
            self._now = call[0]
            call[3](call)


class Phase(simpy.Event):
    """An event in a phase of this time, for processes."""

    def __init__(self, env: simpy.Environment, phase: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, phase)
