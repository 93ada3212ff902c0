"""Which servers of a fleet take requests, and when that changes: failures, and an autoscaler.

    off ──start──▶ starting ──(start_up_ns)──▶ open ──drain──▶ draining ──(last request ends)──▶ off
                                                │ ▲               │
                                           fail │ │ back          │ fail
                                                ▼ │               ▼
                                               down ◀──────────────

A server that starts or comes back has an empty cache. What is not off or down is paid for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from engine.core.scaling import Autoscaler, Scaling
from engine.core.sequence import Request

State = Literal["off", "starting", "open", "draining", "down"]
Later = Callable[[int, Callable[[], None]], None]


@dataclass(frozen=True)
class Failure:
    """A server dies; `down_ns` later it is back, or never (None)."""

    server: int
    time_ns: int
    down_ns: int | None = None


@dataclass(frozen=True)
class Scaled:
    """An autoscaler, which reads its metric every `interval_ns`.

    Attributes:
        start_up_ns: from the decision until a new server takes requests.
        is_within_slo: tells whether a request that has ended was served within the limits.
    """

    options: Scaling
    interval_ns: int
    start_up_ns: int
    is_within_slo: Callable[[Request], bool] = lambda request: True


@dataclass(frozen=True)
class Changes:
    """What changes the servers of a fleet while it runs.

    Attributes:
        retries: whether requests of a server that dies begin anew on another; else they are lost.
        num_open: servers that are open at the start; None for all.
    """

    failures: tuple[Failure, ...] = ()
    retries: bool = True
    scaled: Scaled | None = None
    num_open: int | None = None


class Count(NamedTuple):
    """Servers from `time_ns` on: those that take requests, and all that are paid for."""

    time_ns: int
    num_open: int
    num_paid: int


class Staff(NamedTuple):
    """What a roster does with servers, by their numbers."""

    fail: Callable[[int], None]
    open: Callable[[list[int]], None]
    load: Callable[[int], int]
    reading: Callable[[], float]
    is_over: Callable[[], bool]


class Roster:
    """Keeps the state of `num_servers` servers.

    Attributes:
        counts: how many there are, whenever that changes.
    """

    def __init__(
        self, num_servers: int, changes: Changes, later: Later, clock: Callable[[], int], staff: Staff
    ) -> None:
        first = num_servers if changes.num_open is None else changes.num_open
        self._states: list[State] = ["open" if number < first else "off" for number in range(num_servers)]
        self._changes, self._later, self._clock, self._staff = changes, later, clock, staff
        self._lives = [0] * num_servers  # a change that was due in an earlier life of a server is not made
        self._num_due = 0  # of those that are down, how many will be back
        self.counts = [Count(0, first, first)]

    def begin(self) -> None:
        """Be told of the first changes; once, at time 0."""
        self._tell()
        for failure in self._changes.failures:
            self._later(failure.time_ns, partial(self._fail, failure))
        if (scaled := self._changes.scaled) is not None:
            scaler = Autoscaler(scaled.options)
            self._later(scaled.interval_ns, lambda: self._scale(scaled, scaler))

    def on_end(self, server: int) -> None:
        """A request of a server has ended."""
        if self._states[server] == "draining" and not self._staff.load(server):
            self._set(server, "off")

    def _fail(self, failure: Failure) -> None:
        server = failure.server
        if self._states[server] in ("off", "down"):
            return
        self._lives[server] += 1
        self._set(server, "down")
        self._staff.fail(server)
        if failure.down_ns is not None:
            self._num_due += 1
            self._later(failure.down_ns, lambda: self._return(server))

    def _return(self, server: int) -> None:
        self._num_due -= 1
        self._set(server, "open")

    def _scale(self, scaled: Scaled, scaler: Autoscaler) -> None:
        if self._staff.is_over() or self._states.count("down") - self._num_due == len(self._states):
            return
        open_ones, starting = self._all("open"), self._all("starting")
        desired = scaler.desired(len(open_ones), self._staff.reading()) if open_ones else scaled.options.fewest
        missing = desired - len(open_ones) - len(starting)
        for server in [*self._all("draining"), *self._all("off")][: max(0, missing)]:
            self._start(server, scaled.start_up_ns)
        idlest = sorted(open_ones, key=lambda server: (self._staff.load(server), -server))
        for server in idlest[: max(0, -missing)] if not starting else ():
            self._set(server, "draining")
            self.on_end(server)
        self._later(scaled.interval_ns, lambda: self._scale(scaled, scaler))

    def _start(self, server: int, start_up_ns: int) -> None:
        if self._states[server] == "draining":
            self._set(server, "open")
            return
        self._set(server, "starting")
        self._staff.fail(server)  # nothing is left of what it had cached
        life = self._lives[server]
        self._later(start_up_ns, lambda: self._set(server, "open") if self._lives[server] == life else None)

    def _all(self, state: State) -> list[int]:
        return [server for server, each in enumerate(self._states) if each == state]

    def _set(self, server: int, state: State) -> None:
        self._states[server] = state
        self._tell()

    def _tell(self) -> None:
        open_ones = self._all("open")
        num_paid = len(open_ones) + len(self._all("starting")) + len(self._all("draining"))
        count = Count(self._clock(), len(open_ones), num_paid)
        if self.counts[-1].time_ns == count.time_ns:
            self.counts.pop()
        self.counts.append(count)
        self._staff.open(open_ones)
