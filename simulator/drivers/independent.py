"""Servers that know nothing of one another: each runs ahead of the others, as far as requests have arrived.

Where the rule of the router does not look at servers, and arrivals are fixed, it can choose for many requests before
they are due. The servers then take turns of thousands of steps in place of single ones, so that what a server touches
is still in the processor's caches at its next step. Each server lives through the same times as on a timetable; what
else is called there, readings of metrics that the rule does not look at, is left out.
"""

from __future__ import annotations

import simpy

from simulator.arrivals import NEVER
from simulator.drivers.phases import ARRIVALS, PHASE_BITS, PHASE_MASK, moment
from simulator.drivers.timetable import Timed, Timetable


class Independent(Timetable):
    """Runs each server up to the first request that was not sent, and then sends the next ones, `ahead` for each."""

    def __init__(self, env: simpy.Environment, ahead: int) -> None:
        super().__init__(env)
        self._ahead = ahead

    @property
    def next_ns(self) -> int:
        """When the next request is sent: what other servers do is of no concern to a server."""
        return self.source.next_ns

    def expect(self, server: Timed, due: int) -> None:
        server.due = due

    def run(self) -> None:
        """All events until none is left; `now` is that of the last in the end."""
        servers, latest = self._servers, 0
        while True:
            until = moment(self.source.next_ns, ARRIVALS)
            for server in servers:
                while server.due < until:
                    self.now = now = server.due >> PHASE_BITS
                    server.pass_to(now, server.due & PHASE_MASK)
                latest = max(latest, self.now)
            if until == NEVER:
                self.now = latest
                return
            for _ in range(self._ahead * len(servers)):
                if (due_ns := self.source.next_ns) == NEVER:
                    break
                self.now = due_ns
                self.source.dispatch(due_ns)
