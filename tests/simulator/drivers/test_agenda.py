"""What a process with several simulated servers does first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from simulator.drivers.agenda import Agenda, first_start
from simulator.drivers.moving import MovingMean


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60)), min_size=1, max_size=8))
def test_the_first_of_several_sends_begins_where_all_are_early_as_much_as_late(each: list[tuple[int, int]]) -> None:
    sends = [(due, number, length, lambda: None) for number, (due, length) in enumerate(sorted(each))]
    due, lengths = (np.array([send[at] for send in sends]) for at in (0, 2))
    targets = due - lengths // 2 - (lengths.cumsum() - lengths)
    assert first_start(sends) == np.floor(isotonic_regression(targets, weights=lengths).x[0] + 1e-9)


class World:
    """An event loop whose time passes only in what it calls, and until the next alarm."""

    def __init__(self) -> None:
        self.now, self.done = 0, list[tuple[str, int]]()
        self._soon, self._alarm = list[Callable[[], None]](), (0, lambda: None)

    def call_soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def set(self, due_ns: int, call: Callable[[], None]) -> None:
        self._alarm = due_ns, call

    def takes(self, name: str, length: int) -> Callable[[], None]:
        def call() -> None:
            self.done.append((name, self.now))
            self.now += length

        return call

    def turns(self, count: int) -> None:
        for _ in range(count):
            if self._soon:
                self._soon.pop(0)()
            else:
                self.now = max(self.now, self._alarm[0])
                self._alarm[1]()


def test_sends_go_first_and_work_only_where_it_has_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr("simulator.drivers.agenda.time.monotonic_ns", lambda: world.now)
    monkeypatch.setattr("simulator.drivers.agenda.Alarm", lambda loop: loop)
    agenda = Agenda(world)  # type: ignore[arg-type]
    agenda.work(10, world.takes("work of 15", 15))
    world.turns(1)
    agenda.send(145, 10, world.takes("b", 10))
    agenda.send(140, 10, world.takes("a", 10))
    agenda.work(110, world.takes("work in time", 15))
    agenda.work(120, world.takes("later work", 15))
    world.turns(10)
    # a begins 3 earlier than it would alone, so that b is late by as little
    assert world.done == [("work of 15", 10), ("work in time", 110), ("a", 132), ("b", 142), ("later work", 152)]


def test_a_delay_counts_as_twice_the_mean_at_most() -> None:
    mean = MovingMean()
    for value in (8.0, 8.0, 800.0):
        mean.add(value)
    assert mean.mean == 9.0
