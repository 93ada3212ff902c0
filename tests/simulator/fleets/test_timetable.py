"""The timetable of a fleet: whatever is expected happens once, in order of time and phase."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.arrivals import NEVER
from simulator.drivers.clock import Clock
from simulator.drivers.phases import ARRIVALS, ENDS, HANDOVERS, PLANS, TRANSFERS, moment
from simulator.drivers.timetable import Call, Timed, Timetable
from simulator.replica import Source
from tests.selection import examples

Happened = list[tuple[int, int, str]]
DELAYS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


pytestmark = pytest.mark.interpreted("servers of its own inherit from `Timed`")


class Stepping(Timed):
    """Begins at 0, and ends a step after each of some delays."""

    def __init__(self, timetable: Timetable, delays: list[int], happened: Happened) -> None:
        super().__init__()
        self.delays, self.happened = delays, happened
        self.due = moment(0, PLANS)
        timetable.add(self)

    def pass_to(self, now: int, phase: int) -> None:
        assert self.due == moment(now, phase), "what it expected before does not happen"
        self.happened.append((now, phase, f"server {self.place}"))
        self.due = NEVER
        if phase == ENDS:
            self.due = moment(now, PLANS)
        elif self.delays:
            self.due = moment(now + self.delays.pop(), ENDS)


class Arriving(Source):
    def __init__(self, times: list[int], happened: Happened) -> None:
        super().__init__()
        self.times, self.happened = sorted([*times, NEVER]), happened
        self.next_ns = self.times[0]

    def dispatch(self, until_ns: int) -> None:
        self.happened.append((until_ns, ARRIVALS, "arrival"))
        self.times.pop(0)
        self.next_ns = self.times[0]


@examples(30)
@given(st.lists(DELAYS, max_size=5), DELAYS, st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=4))
def test_all_that_is_expected_happens_in_order(
    servers: list[list[int]], arrivals: list[int], changes: list[tuple[int, int]]
) -> None:
    timetable = Clock().timetable
    happened: Happened = []
    stepping = [Stepping(timetable, list(delays), happened) for delays in servers]
    timetable.source = Arriving(arrivals, happened)

    def change(number: int, call: Call) -> None:
        """A server begins anew: what it expected does not happen."""
        happened.append((timetable.now, HANDOVERS, "call"))
        timetable.call(TRANSFERS, 0, lambda later: happened.append((later[0], TRANSFERS, "call")))
        if number < len(stepping):
            timetable.expect(stepping[number], moment(timetable.now, PLANS))

    for time, number in changes:
        timetable.call(HANDOVERS, time, partial(change, number))
    timetable.run()
    assert timetable.next_ns == NEVER
    assert [entry[:2] for entry in happened] == sorted(entry[:2] for entry in happened)
    counts = {name: sum(entry[2] == name for entry in happened) for name in ("arrival", "call")}
    assert counts == {"arrival": len(arrivals), "call": 2 * len(changes)}
    for place, server in enumerate(stepping):
        phases = [phase for _, phase, name in happened if name == f"server {place}"]
        assert not server.delays
        if not changes:
            assert phases == [PLANS, *[ENDS, PLANS] * len(servers[place])]
