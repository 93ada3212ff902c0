"""What is to happen on a clock that servers share, in order of time and phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any

import simpy


class Timetable:
    """The events of `env`, among which are calls of plain functions: an event of SimPy takes three times as long, and
    every step of a server is one.

    Attributes:
        now: in ns.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.now = 0
        self._env: Any = env
        self._queue: list[Any] = self._env._queue
        self._numbers: Iterator[int] = self._env._eid

    @property
    def is_done(self) -> bool:
        """Whether nothing else happens at this time, as far as is known."""
        queue = self._queue
        return not queue or queue[0][0] != self.now

    def call(self, phase: int, delay: int, then: Callable[[Any], None]) -> Any:
        """Call `then` in `delay` ns, in a phase of that time; the call that is returned is known by its identity."""
        # Typed as a tuple it would be copied by a compiled core.
        call: Any = (self.now + delay, phase, next(self._numbers), then)
        heappush(self._queue, call)
        return call

    def run(self) -> None:
        """All events in order until none is left, without SimPy's call for each of them."""
        queue, env = self._queue, self._env
        while queue:
            call = queue[0]
            self.now = call[0]
            if isinstance(call[3], simpy.Event):
                env.step()
            else:
                heappop(queue)
                env._now = call[0]
                call[3](call)
