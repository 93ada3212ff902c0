"""Which servers are open, starting, draining, down and off, one decision at a time; and what a router sees of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from engine.core.scaling import Scaling
from engine.core.scheduler_options import OffloadOptions
from engine.core.sequence import Request
from simulator.fleets.desk import View
from simulator.fleets.roster import Changes, Count, Failure, Roster, Scaled, Staff
from tests.engine.core.builders import make, run


class Acted:
    """What a roster did, with servers of these loads and the given readings of the metric, one each 10 ns."""

    def __init__(self, num_servers: int, changes: Changes, readings: list[float], loads: dict[int, int]) -> None:
        self.now, self.failed = 0, list[tuple[int, int]]()
        self.opened: list[tuple[int, list[int]]] = []
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        left, self.loads = list(readings), loads
        staff = Staff(
            lambda server: self.failed.append((self.now, server)),
            lambda servers: self.opened.append((self.now, servers)),
            lambda server: loads.get(server, 0),
            lambda: left.pop(0),
            lambda: not left,
        )
        self.roster = Roster(num_servers, changes, self._later, lambda: self.now, staff)
        self.roster.begin()

    def _later(self, delay: int, then: Callable[[], None]) -> None:
        heapq.heappush(self._calls, (self.now + delay, len(self._calls), then))

    def run(self) -> Acted:
        while self._calls:
            self.now, _, then = heapq.heappop(self._calls)
            assert self.now < 1000, "it never ends"
            then()
        return self


def scaled(fewest: int, most: int, start_up: int) -> Scaled:
    return Scaled(Scaling("requests", 1.0, fewest, most), interval_ns=10, start_up_ns=start_up)


def test_one_that_drains_is_open_again_before_another_starts() -> None:
    acted = Acted(3, Changes(scaled=scaled(1, 3, 5), num_open=2), [0.5, 2.0], {0: 3, 1: 2}).run()
    assert acted.opened == [(0, [0, 1]), (10, [0]), (20, [0, 1])] and not acted.failed
    assert acted.roster.counts == [Count(0, 2, 2), Count(10, 1, 2), Count(20, 2, 2)]


def test_nobody_drains_while_others_start_and_what_starts_is_paid_for_and_empty() -> None:
    acted = Acted(3, Changes(scaled=scaled(1, 3, 15), num_open=1), [3.0, 0.1, 0.1, 0.1], {0: 1, 1: 1}).run()
    assert acted.failed == [(10, 1), (10, 2)], "nothing is left of what they had cached"
    assert acted.roster.counts == [Count(0, 1, 1), Count(10, 1, 3), Count(25, 3, 3), Count(30, 1, 2)]
    assert acted.opened[-1] == (30, [0]), "of those with one request the last; the idle one is off at once"


def test_who_starts_counts_as_there() -> None:
    acted = Acted(3, Changes(scaled=scaled(1, 3, 25), num_open=1), [2.0, 2.0], {}).run()
    assert acted.failed == [(10, 1)] and acted.opened == [(0, [0]), (10, [0]), (35, [0, 1])]


def test_who_is_down_does_not_fail_once_more() -> None:
    acted = Acted(2, Changes((Failure(0, 5, 20), Failure(0, 9, 30))), [], {}).run()
    assert acted.failed == [(5, 0)] and acted.opened == [(0, [0, 1]), (5, [1]), (25, [0, 1])]


def test_where_none_is_open_the_fewest_start() -> None:
    acted = Acted(3, Changes((Failure(0, 5),), scaled=scaled(2, 3, 1), num_open=1), [1.0, 2.0], {}).run()
    assert acted.opened[:2] == [(0, [0]), (5, [])] and acted.opened[-1] == (11, [1, 2])


def test_a_draining_server_is_off_when_its_last_request_has_ended() -> None:
    acted = Acted(2, Changes(scaled=scaled(1, 2, 1)), [0.1], {0: 2, 1: 1}).run()
    acted.loads[1] = 0
    acted.now = 90
    acted.roster.on_end(1)
    assert acted.roster.counts[-2:] == [Count(10, 1, 2), Count(90, 1, 1)]


class Clock:
    now = 0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def view(clock: Clock) -> View:
    """Of a server with blocks of 4 tokens that has block 1 on the device, and 2, 3 and 4 behind it; what it is sent
    counts as there for 10 ns."""
    scheduler = make(num_blocks=9, num_host_blocks=4, offload=OffloadOptions())
    scheduler.add(Request(0, 16, 1, block_hashes=[1, 2, 3, 4]))
    scheduler.add(Request(1, 32, 1))  # takes the five blocks that are left, and the last three of the prompt
    list(run(scheduler))
    replica: Any = SimpleNamespace(scheduler=scheduler)
    return View(0, replica, lambda: clock.now, keeps_prefixes=True, reads_caches=True, sent_counts_ns=10)


def test_what_was_just_sent_counts_as_on_the_device_and_not_behind_it(view: View, clock: Clock) -> None:
    request = Request(0, 20, 1, block_hashes=[1, 2, 3, 4, 5])
    assert view.cached_tokens(request) == (4, 12)
    view.count(Request(1, 9, 1, block_hashes=[1, 2]))
    assert view.cached_tokens(request) == (8, 8)
    clock.now = 9
    view.count(request)
    view.forget(request)  # its end changes nothing
    assert view.cached_tokens(request) == (20, 0)
    clock.now = 10  # the first one's time is over, which takes along what the second has in common with it
    assert view.cached_tokens(request) == (4, 12)
    view.count(Request(2, 9, 1, block_hashes=[1, 2]))
    assert view.cached_tokens(request) == (20, 0)
    clock.now = 19  # and so is the second's
    assert view.cached_tokens(request) == (4, 12)


def test_what_is_to_compute_is_what_was_not_sent_before_until_the_first_token(view: View) -> None:
    view.watch_prompts()
    first, second, third = (Request(number, 20, 1, block_hashes=[1, 2, 3, 4, 5 + number]) for number in range(3))
    for request in (first, second, third):
        view.count(request)
    assert view.num_uncached_tokens == 20 + 4 + 4
    on_first_token: Any = view._replica.on_first_token
    on_first_token(first)
    assert view.num_uncached_tokens == 8
    view.forget(first)
    view.forget(second)  # without a token
    assert view.num_uncached_tokens == 4
    view.reset()
    assert view.num_uncached_tokens == 0


def test_nothing_is_believed_of_a_server_that_has_died(view: View) -> None:
    request = Request(0, 20, 1, block_hashes=[1, 2, 3, 4, 5])
    view.count(request)
    assert view.prefix_hits(request) == 20 and view.num_requests == 1 and view.num_tokens == 20
    view.reset()
    assert view.prefix_hits(request) == 0 and view.cached_tokens(request) == (4, 12)
    assert view.num_requests == view.num_tokens == 0
