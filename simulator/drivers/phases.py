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

import simpy

ENDS, READINGS, HANDOVERS, ARRIVALS, PLANS, TRANSFERS = 1, 2, 3, 4, 5, 6  # ENDS is the priority of SimPy's time-outs


class Phase(simpy.Event):
    """An event `delay` ns from now, in a phase of that time."""

    def __init__(
        self,
        env: simpy.Environment,
        phase: int,
        delay: int = 0,
        then: Callable[[simpy.Event], None] | None = None,
    ) -> None:
        self.env = env  # what `Event.__init__` does, without a call of it for each event
        self.callbacks = [] if then is None else [then]
        self._ok = True
        self._value = None
        env.schedule(self, phase, delay)
