"""What tests of arrivals share: a server that takes a given time for each request."""

from heapq import heappop, heappush

from simulator.arrivals import NEVER, Arrivals

SECOND = 10**9

Event = tuple[int, int]


def drive(arrivals: Arrivals, service_ns: list[int], late_ns: int = 0) -> tuple[list[Event], dict[int, int]]:
    """Serves each row for its time, looking for arrivals up to `late_ns` late; service 0 is a rejection.

    Returns the arrivals as they were handed out, and when each row finished.
    """
    arrived: list[Event] = []
    finished: dict[int, int] = {}
    running: list[Event] = []
    while (now := min(arrivals.next_ns, running[0][0] if running else NEVER)) < NEVER:
        if arrivals.next_ns <= now:
            now += late_ns
        for time, row in arrivals.pop_due(now):
            arrived.append((time, row))
            heappush(running, (now + service_ns[row], row))
        assert arrivals.next_ns > now
        while running and running[0][0] <= now:
            _, row = heappop(running)
            finished[row] = now
            arrivals.on_finish(row, now)
    return arrived, finished
