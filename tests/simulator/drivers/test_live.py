"""A replica in real time that is late."""

from __future__ import annotations

import asyncio
import time

from engine.core.plan import StepPlan
from engine.core.sequence import Request
from simulator.drivers.agenda import Agenda
from simulator.drivers.live import Live
from simulator.replica import Replica
from tests.simulator.replicas import FlatCost, PlanLog, make

NUM_STEPS = 50


class Silent:
    """Has nobody to tell anything."""

    def prepare(self, plan: StepPlan, due_ns: int) -> int:
        return 0

    def send(self) -> None:
        raise AssertionError("nothing was prepared")


def make_live(each_ns: int, log: PlanLog) -> Live:
    replica = Replica(make(4), FlatCost(each_ns=each_ns), log, compress=False)
    return Live(replica, Agenda(asyncio.get_running_loop()), Silent())


def test_each_step_of_a_late_server_returns_to_the_event_loop() -> None:
    log, seen = PlanLog(), []

    async def serve() -> None:
        live = make_live(1, log)
        live.submit([Request(0, 8, NUM_STEPS)], time.monotonic_ns())  # steps of 1 ns: the loop is always late
        while not log.finished:
            seen.append(len(log.plans))  # as the writer of an answer does, whose turn is between steps
            await asyncio.sleep(0)

    asyncio.run(serve())
    assert set(range(NUM_STEPS)) <= set(seen)
    assert [start for start, _ in log.plans] == [log.plans[0][0] + i for i in range(NUM_STEPS)]


def test_what_was_done_to_read_a_request_takes_no_time_of_the_simulation() -> None:
    """But no request comes before what the simulation has done, or before one that came earlier."""
    log = PlanLog()
    first, second, third = (Request(number, 8, 2) for number in range(3))
    now = time.monotonic_ns()

    async def serve() -> None:
        live = make_live(1000, log)
        live.submit([first], now - 10_000)
        live.submit([second], now - 20_000)
        while len(log.finished) < 2:
            await asyncio.sleep(0)
        live.submit([third], now - 30_000)
        while len(log.finished) < 3:
            await asyncio.sleep(0)

    asyncio.run(serve())
    starts = [start for start, _ in log.plans]
    assert first.arrival_time == second.arrival_time == starts[0] == now - 10_000
    assert third.arrival_time == starts[3] == starts[2] + 1000
