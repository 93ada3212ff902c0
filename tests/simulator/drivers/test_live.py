"""A replica in real time that is late."""

from __future__ import annotations

import asyncio

from engine.core.sequence import Request
from simulator.drivers.live import Live
from simulator.replica import Replica
from tests.simulator.replicas import FlatCost, PlanLog, make

NUM_STEPS = 50


def test_each_step_of_a_late_server_returns_to_the_event_loop() -> None:
    log, seen = PlanLog(), []

    async def serve() -> None:
        live = Live(Replica(make(4), FlatCost(each_ns=1), log, compress=False), asyncio.get_running_loop())
        live.submit([Request(0, 8, NUM_STEPS)])  # steps of 1 ns: the loop is always late
        while not log.finished:
            seen.append(len(log.plans))  # as the writer of an answer does, whose turn is between steps
            await asyncio.sleep(0)

    asyncio.run(serve())
    assert set(range(NUM_STEPS)) <= set(seen)
    assert [start for start, _ in log.plans] == [log.plans[0][0] + i for i in range(NUM_STEPS)]
