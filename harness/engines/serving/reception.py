"""The front end of simulated servers in real time: requests reach their engine when they have passed it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from engine.core.sequence import Request
from simulator.arrivals import NEVER
from simulator.drivers.agenda import Agenda
from simulator.versions.front_end import Coming, FrontEnd
from simulator.versions.front_end_times import FrontEndTimes

Submit = Callable[[list[Request], int], None]
"""Hands requests over that an engine sees at a time of the simulation."""


class _Inside(NamedTuple):
    request: Request
    submit: Submit


class Reception:
    """Requests in the front end. As in all that is simulated in real time, what is late in this process makes nothing
    later in the simulation."""

    def __init__(self, times: FrontEndTimes, num_processes: int, agenda: Agenda) -> None:
        self._agenda = agenda
        self._coming = Coming()
        self._prompt_tokens: dict[int, int] = {}  # by the request's id
        self._front_end = FrontEnd(self._coming, times, self._prompt_tokens, num_processes)
        self._inside: dict[int, _Inside] = {}
        self._last_ns = 0  # of the simulation
        self._expected_ns = NEVER

    def enter(self, request: Request, received_ns: int, submit: Submit) -> None:
        """A request arrives, not before the one before it."""
        now = self._last_ns = max(received_ns, self._last_ns)
        request.arrival_time = now
        self._prompt_tokens[request.request_id] = request.num_prompt_tokens
        self._inside[request.request_id] = _Inside(request, submit)
        self._coming.push(request.request_id, now)
        self._front_end.look()
        self._expect()

    @property
    def num_inside(self) -> int:
        """Requests that somebody waits for."""
        return len(self._inside)

    def withdraw(self, request: Request) -> bool:
        """Nobody waits for a request any more; False where it is not here."""
        return self._inside.pop(request.request_id, None) is not None

    def _expect(self) -> None:
        next_ns = self._front_end.next_ns
        if next_ns < self._expected_ns:
            self._expected_ns = next_ns
            self._agenda.work(next_ns, partial(self._pass, next_ns))

    def _pass(self, now: int) -> None:
        if now != self._expected_ns:  # something else was expected before
            return
        self._last_ns = max(now, self._last_ns)
        for _, number in self._front_end.pop_due(now):
            del self._prompt_tokens[number]
            if (inside := self._inside.pop(number, None)) is not None:
                inside.submit([inside.request], now)
        self._expected_ns = NEVER
        self._expect()
