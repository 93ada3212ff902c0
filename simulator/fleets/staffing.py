"""Changes of a fleet while it runs: a server that dies loses its requests, and one that has opened gets new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.core.scheduler import Scheduler
from engine.core.sequence import Request
from simulator.drivers.shared import Shared
from simulator.fleets.gateway import Gateway
from simulator.fleets.roster import Changes, Count, Later, Roster, Staff
from simulator.replica import Replica


@dataclass(frozen=True)
class Staffing:
    """Changes of a fleet, and what it takes to make them.

    Attributes:
        make_scheduler: makes the empty scheduler of a server that begins anew, given its number.
        on_lost: called with each request that no server will end, the server's number, and the time.
        counts: how many servers there were over time; filled at the end of the run.
        retried: the numbers of the requests that began anew.
    """

    changes: Changes
    make_scheduler: Callable[[int], Scheduler]
    on_lost: Callable[[Request, int, int], None]
    counts: list[Count] = field(default_factory=list)
    retried: set[int] = field(default_factory=set)


class Crew:
    """Makes the changes of `staffing` on the servers of a gateway."""

    def __init__(
        self,
        staffing: Staffing,
        gateway: Gateway,
        replicas: Sequence[Replica],
        drivers: Sequence[Shared],
        later: Later,
        clock: Callable[[], int],
    ) -> None:
        self._staffing, self._gateway, self._replicas, self._drivers = staffing, gateway, replicas, drivers
        self._clock = clock
        self._ended = [0, 0]  # requests since the last reading, and those within the SLO
        staff = Staff(self._fail, self._open, self._load, self._reading, lambda: gateway.is_over)
        self._roster = Roster(len(replicas), staffing.changes, later, clock, staff)
        gateway.on_left = self._on_left
        self._roster.begin()

    def give_up(self) -> bool:
        """Ends the requests that wait for a server, as none comes any more. Returns whether there were any: their ends
        may bring other requests."""
        waited = self._gateway.give_up(self._clock())
        for request in waited:
            self._staffing.on_lost(request, 0, self._clock())
        self._staffing.counts[:] = self._roster.counts
        return bool(waited)

    def _fail(self, number: int) -> None:
        changes, now = self._staffing.changes, self._clock()
        self._drivers[number].fail()
        lost = self._replicas[number].lose(self._staffing.make_scheduler(number))
        if changes.retries:
            self._staffing.retried.update(request.request_id for request in lost)
        else:
            for request in lost:
                self._staffing.on_lost(request, number, now)
        self._gateway.fail(number, lost, now, retries=changes.retries)

    def _open(self, numbers: list[int]) -> None:
        self._gateway.open(numbers, self._clock())

    def _load(self, number: int) -> int:
        return self._gateway.views[number].num_requests

    def _reading(self) -> float:
        """The metric of the autoscaler, over the servers that take requests."""
        scaled = self._staffing.changes.scaled
        assert scaled is not None, "it asks"
        views = self._gateway.open_views
        match scaled.options.metric:
            case "requests":
                return sum(view.num_requests for view in views) / len(views)
            case "queue":
                return sum(view.num_waiting for view in views) / len(views)
            case "kv_use":
                return 1 - sum(view.num_free_blocks for view in views) / sum(view.num_blocks for view in views)
        (ended, within), self._ended = self._ended, [0, 0]
        return within / ended if ended else 1.0

    def _on_left(self, number: int, request: Request) -> None:
        if (scaled := self._staffing.changes.scaled) is not None:
            self._ended[0] += 1
            self._ended[1] += scaled.is_within_slo(request)
        self._roster.on_end(number)
