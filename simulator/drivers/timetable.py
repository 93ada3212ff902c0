"""What is to happen on a clock that servers share, in order of time and phase (`simulator.drivers.phases`).

servers    what each of them expects next: numbers in a heap, as an object for each step takes too long
source     the next request that arrives
the rest   SimPy's queue: functions that are called, and the events of processes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any

import simpy

from simulator.arrivals import NEVER
from simulator.drivers.phases import ARRIVALS, PHASE_BITS, PHASE_MASK, moment
from simulator.replica import Source

Call = tuple[int, int, int, Callable[[Any], None]]
"""Time, phase, how many events were scheduled before, and the function, which is called with all of this."""


class Timed:
    """A server whose time passes from one event to the next.

    Attributes:
        due: the moment of the event that it expects; NEVER where it expects none.
        place: among the servers of its timetable.
    """

    def __init__(self) -> None:
        self.due = NEVER
        self.place = 0

    def pass_to(self, now: int, phase: int) -> None:
        """What was due happens; `due` is set to what is expected next."""
        raise NotImplementedError


class Timetable:
    """The events of `env`, of servers and of a source.

    Attributes:
        now: in ns.
        source: its requests are dispatched when they arrive.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.now = 0
        self.source = Source()
        self._env: Any = env
        self._queue: list[Any] = self._env._queue
        self._numbers: Iterator[int] = self._env._eid
        self._servers: list[Timed] = []
        self._heap: list[int] = []  # moments, each with the place of a server: out of date where it expects another
        self._place_bits = 0

    @property
    def next_ns(self) -> int:
        """When something happens next, as far as is known; NEVER where nothing does."""
        next_ns = self.source.next_ns
        if self._heap and (due_ns := self._heap[0] >> self._place_bits + PHASE_BITS) < next_ns:
            next_ns = due_ns
        return min(next_ns, self._queue[0][0]) if self._queue else next_ns

    def add(self, server: Timed) -> None:
        """Let the time of a server pass here; before `run`."""
        server.place = len(self._servers)
        self._servers.append(server)
        self._place_bits = len(self._servers).bit_length()

    def expect(self, server: Timed, due: int) -> None:
        """Outside of its own events a server comes to expect this moment, and no other any more."""
        server.due = due
        heappush(self._heap, due << self._place_bits | server.place)

    def call(self, phase: int, delay: int, then: Callable[[Any], None]) -> None:
        """Call `then` in `delay` ns, in a phase of that time."""
        # Typed as a tuple it would be copied by a compiled core.
        call: Any = (self.now + delay, phase, next(self._numbers), then)
        heappush(self._queue, call)

    def run(self) -> None:
        """All events in order until none is left."""
        queue, heap, servers, env = self._queue, self._heap, self._servers, self._env
        bits, mask = self._place_bits, (1 << self._place_bits) - 1
        heap[:] = sorted([server.due << bits | server.place for server in servers if server.due != NEVER])
        while True:
            source_ns = self.source.next_ns
            first = moment(source_ns, ARRIVALS)
            is_call = False
            if queue and (call := moment(queue[0][0], queue[0][1])) < first:
                first, is_call = call, True
            if heap and (due := heap[0] >> bits) <= first:
                server = servers[heappop(heap) & mask]
                if server.due == due:
                    self.now = env._now = now = due >> PHASE_BITS
                    server.pass_to(now, due & PHASE_MASK)
                    if server.due != NEVER:
                        heappush(heap, server.due << bits | server.place)
            elif is_call:
                self._call_next()
            elif first != NEVER:
                self.now = env._now = source_ns
                self.source.dispatch(source_ns)
            else:
                return

    def _call_next(self) -> None:
        call, env = self._queue[0], self._env
        self.now = call[0]
        if isinstance(call[3], simpy.Event):
            env.step()
        else:
            heappop(self._queue)
            env._now = call[0]
            call[3](call)
