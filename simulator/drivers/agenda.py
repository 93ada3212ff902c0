"""What the simulated servers of a process do in real time: one thing after the other, and what clients wait for first.

The tokens of a step are due at one time, but are sent one after the other. Sends of steps that end at nearly one time
follow each other, and begin so much before that they are early on average as much as they are late:

    due                      |a |b
    sends             [--a--][--b--]

All other work of the servers waits for that, and begins only where it has time before the next sends.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from bisect import insort
from collections.abc import Callable, Sequence

from simulator.arrivals import NEVER
from simulator.drivers.alarm import Alarm
from simulator.drivers.moving import MovingMean

_Sends = tuple[int, int, int, Callable[[], None]]
"""When they are due, a number, how long they take, and what sends."""


class Agenda:
    """Calls what it is given at its time. The clock is `time.monotonic_ns`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._alarm = Alarm(loop)
        self._sends: list[_Sends] = []  # in the order in which they are due
        self._work: list[tuple[int, int, Callable[[], None]]] = []  # a heap
        self._numbers = itertools.count()
        self._work_ns = MovingMean()  # that a call of other work takes
        self._is_running = False
        self._is_closed = False

    def send(self, due_ns: int, length_ns: int, call: Callable[[], None]) -> None:
        """Call it around `due_ns`, which takes about `length_ns`."""
        insort(self._sends, (due_ns, next(self._numbers), length_ns, call))
        self._wait()

    def work(self, due_ns: int, call: Callable[[], None]) -> None:
        """Call it at `due_ns`, or when there is time after that."""
        heapq.heappush(self._work, (due_ns, next(self._numbers), call))
        self._wait()

    def close(self) -> None:
        """Call nothing any more."""
        self._is_closed = True
        self._alarm.close()

    def _wait(self) -> None:
        """Run again when the next thing can be done."""
        if self._is_running or self._is_closed:
            return
        now, sends_ns = time.monotonic_ns(), first_start(self._sends)
        at = sends_ns
        if self._work and (due_ns := max(self._work[0][0], now)) + self._work_ns.mean <= sends_ns:
            at = due_ns
        if at <= now:
            self._loop.call_soon(self._run)
        elif at != NEVER:
            self._alarm.set(at, self._run)

    def _run(self) -> None:
        """All sends whose time has come, then one piece of work; the event loop reads requests in between."""
        if self._is_closed:
            return
        self._is_running = True
        try:
            while (sends_ns := first_start(self._sends)) <= time.monotonic_ns():
                self._sends.pop(0)[-1]()
            now = time.monotonic_ns()
            if self._work and self._work[0][0] <= now and now + self._work_ns.mean <= sends_ns:
                heapq.heappop(self._work)[-1]()
                self._work_ns.add(time.monotonic_ns() - now)
        finally:
            self._is_running = False
        self._wait()


def first_start(sends: Sequence[_Sends]) -> int:
    """When to begin the first of some sends, which are in the order of their times; NEVER where there are none.

    Sends take w and are due in their middle, at d. Of all starts x with x_i + w_i <= x_j for the next, those with the
    least sum of w (x + w / 2 - d)^2 are an isotonic regression; its first value is the least mean of the first few, for
    any number of these.
    """
    least, total, length = NEVER, 0, 0
    for due_ns, _, length_ns, _ in sends:
        total += length_ns * (due_ns - length_ns // 2 - length)
        length += length_ns
        least = min(least, total // length)
    return least
