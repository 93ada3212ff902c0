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
from typing import Any

import simpy

from simulator.drivers.timetable import Timetable

ENDS, READINGS, HANDOVERS, ARRIVALS, PLANS, TRANSFERS = 1, 2, 3, 4, 5, 6  # ENDS is the priority of SimPy's time-outs

Call = tuple[int, int, int, Callable[[Any], None]]
"""Time, phase, how many events were scheduled before, and the function, which is called with all of this."""


class Clock(simpy.Environment):
    """SimPy's environment, which also calls plain functions."""

    def __init__(self) -> None:
        super().__init__()
        self.timetable = Timetable(self)

    def run(self, until: None = None) -> None:
        """All events in order until none is left."""
        self.timetable.run()


class Phase(simpy.Event):
    """An event in a phase of this time, for processes."""

    def __init__(self, env: simpy.Environment, phase: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, phase)
