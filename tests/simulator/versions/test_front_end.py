"""What passes the process before an engine: nothing is lost, and work is shared as in hand-worked cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workload.arrivals import ClosedLoop, OpenLoop
from simulator.arrivals import NEVER, Arrivals
from simulator.versions.front_end import FrontEnd
from simulator.versions.front_end_times import FrontEndTimes
from tests.selection import examples
from tests.simulator.replicas import assert_same, simulate
from tests.simulator.workloads import Case, cases, make_arrivals, make_trace

times = st.builds(
    FrontEndTimes,
    request_ns=st.integers(0, 3_000_000),
    prompt_token_ns=st.floats(0, 1e5),
    latency_ns=st.integers(0, 10_000_000),
    spread=st.floats(0, 1),
    passes=st.integers(1, 2),
)


def seen(arrivals: Arrivals, service_ns: int = 0) -> list[tuple[int, int]]:
    """When an engine sees each row; each is over `service_ns` later."""
    found: list[tuple[int, int]] = []
    ends: list[tuple[int, int]] = []
    while True:
        time = min(arrivals.next_ns, ends[0][0] if ends else NEVER)
        if time == NEVER:
            return found
        while ends and ends[0][0] <= time:
            arrivals.on_finish(ends.pop(0)[1], time)
        for _, row in arrivals.pop_due(time):
            found.append((time, row))
            ends.append((time + service_ns, row))


class Unforeseen:
    """Arrivals of which the front end does not know that they are fixed."""

    def __init__(self, times_ns: list[int]) -> None:
        self._arrivals = OpenLoop(np.array(times_ns))
        self.pop_due, self.on_finish = self._arrivals.pop_due, self._arrivals.on_finish

    @property
    def next_ns(self) -> int:
        return self._arrivals.next_ns


@pytest.mark.parametrize(
    ("arrive", "given", "processes", "expected"),
    [
        ([0, 0], FrontEndTimes(10), 1, [20, 20]),  # both take turns
        ([0, 5], FrontEndTimes(10), 1, [15, 20]),  # 5 alone, 10 shared; then 5 alone
        ([0, 40], FrontEndTimes(10), 1, [10, 50]),
        ([0, 0, 0], FrontEndTimes(10), 2, [15, 15, 15]),
        ([0, 0], FrontEndTimes(10), 2, [10, 10]),
        ([0, 0], FrontEndTimes(0, 2.0), 1, [14, 34]),  # prompts of 7 and 10 tokens, one after the other
        ([0, 0], FrontEndTimes(0, 2.0), 2, [14, 20]),
        ([3, 3], FrontEndTimes(10, 0.0, 100), 1, [123, 123]),
        ([0, 0], FrontEndTimes(10, 2.0, 100, passes=2), 1, [168, 208]),  # 40 together; then 28 and 40, one by one
    ],
)
def test_work_is_shared_and_prompts_are_tokenised_in_order(
    arrive: list[int], given: FrontEndTimes, processes: int, expected: list[int]
) -> None:
    front = FrontEnd(OpenLoop(np.array(arrive)), given, [7, 10, 10], processes)
    assert seen(front) == [(time, row) for row, time in enumerate(expected)]


def test_latencies_are_spread_around_their_mean() -> None:
    front = FrontEnd(OpenLoop(np.zeros(2000, np.int64)), FrontEndTimes(latency_ns=1000, spread=0.5), [1] * 2000, 1)
    late = np.array([time for time, _ in seen(front)])
    assert 500 <= late.min() < 510 and 1490 < late.max() <= 1500 and abs(late.mean() - 1000) < 20


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=40), times, st.integers(1, 4), st.data())
def test_each_request_is_seen_once_and_not_before_its_work(
    arrive: list[int], given: FrontEndTimes, processes: int, data: Any
) -> None:
    arrive.sort()
    tokens = data.draw(st.lists(st.integers(1, 500), min_size=len(arrive), max_size=len(arrive)))
    found = seen(FrontEnd(OpenLoop(np.array(arrive)), given, tokens, processes))
    assert sorted(row for _, row in found) == list(range(len(arrive)))
    assert [time for time, _ in found] == sorted(time for time, _ in found)
    least = given.latency_ns * (1 - given.spread) + given.passes * given.request_ns
    assert all(time >= arrive[row] + least - 2 for time, row in found)
    work = given.request_ns * len(arrive) / processes
    assert found[-1][0] >= arrive[0] + work - 2
    unforeseen: Any = Unforeseen(arrive)
    assert found == seen(FrontEnd(unforeseen, given, tokens, processes)), "looking ahead changes nothing"


def test_clients_in_a_closed_loop_come_no_faster_than_the_process() -> None:
    found = seen(FrontEnd(ClosedLoop(50, 8), FrontEndTimes(1000), [1] * 50, 1), service_ns=10)
    assert found[-1][0] >= 50_000


@examples(6)
@given(cases(), times)
def test_compressed_is_stepped_behind_it(case: Case, given: FrontEndTimes) -> None:
    trace = make_trace(case)
    runs = [
        simulate(
            trace,
            FrontEnd(make_arrivals(case, trace), given, trace.table["num_prompt_tokens"].tolist(), 1),
            [case.make_scheduler(trace)],
            compress=compress,
            alone=alone,
        )[0]
        for compress, alone in ((True, True), (False, True), (True, False))
    ]
    for run in runs[1:]:
        assert_same(runs[0], run)
