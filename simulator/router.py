"""Routers: which replica serves a request. A router pulls arrivals when they are due and hands them to its replicas."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Protocol

from engine.core.sequence import Request
from simulator.arrivals import Arrivals

MakeRequest = Callable[[int, int], Request]
"""Makes the request of a row of the trace, given the row and its intended arrival in ns; the row is its id."""


class Server(Protocol):
    """What a router hands requests to."""

    def submit(self, request: Request) -> None: ...

    def wake(self) -> None:
        """The next request comes earlier than `next_ns` was."""


class RoundRobin:
    """Hands the requests of `arrivals` to its servers in turn.

    Servers call `dispatch` before they plan, and do not plan past `next_ns` without looking; they are woken when a
    request that ended brings one earlier than that.
    """

    def __init__(self, arrivals: Arrivals, make_request: MakeRequest) -> None:
        self._arrivals = arrivals
        self._make_request = make_request
        self._servers: list[Server] = []
        self.is_shared = False
        self.next_ns = arrivals.next_ns  # nothing comes before this time, unless a request that runs now ends

    def connect(self, server: Server) -> None:
        """Let `server` take part; all must be there before the first request is dispatched."""
        self._servers.append(server)
        self._turn = cycle(self._servers)
        self.is_shared = len(self._servers) > 1

    def dispatch(self, until_ns: int) -> None:
        """Submit all requests that arrive up to `until_ns`."""
        while self._arrivals.next_ns <= until_ns:
            for arrival, row in self._arrivals.pop_due(until_ns):
                next(self._turn).submit(self._make_request(row, arrival))
        self.next_ns = self._arrivals.next_ns

    def on_finish(self, request: Request, now_ns: int) -> None:
        """A request ended, or was refused, which may bring the next one of its client."""
        known_ns = self.next_ns
        self._arrivals.on_finish(request.request_id, now_ns)
        self.next_ns = self._arrivals.next_ns
        if self.is_shared and self.next_ns < known_ns:
            for server in self._servers:
                server.wake()
