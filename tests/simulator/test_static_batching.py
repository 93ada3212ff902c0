"""Static batching in simulation: few plans, each one event, and batches that wait for more requests."""

from __future__ import annotations

import numpy as np
import pytest

from engine.core.admission.waiting_queue import by_arrival
from engine.core.kv.block_manager import BlockManager
from engine.core.planning.step_planner import Limits
from engine.core.policies.static import Static, StaticOptions
from engine.core.running.preemption import Preemption
from engine.core.scheduler import Scheduler
from harness.workload.arrivals import OpenLoop
from simulator.drivers.shared import Shared
from tests.simulator.replicas import FlatCost, PlanLog, assert_same, make, simulate
from tests.simulator.workloads import simple_trace


@pytest.mark.interpreted("what the timetable calls is counted")
def test_static_batching_of_a_backlog_has_an_event_per_plan_and_few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    num_events, pass_to = 0, Shared.pass_to

    def count(server: Shared, now: int, phase: int) -> None:
        nonlocal num_events
        num_events += 1
        pass_to(server, now, phase)

    monkeypatch.setattr(Shared, "pass_to", count)
    rng = np.random.default_rng(0)
    trace = simple_trace(rng.integers(1, 90, 64).tolist(), rng.integers(100, 1000, 64).tolist())
    runs, counts = [], []
    for compress in (True, False):
        num_events, log = 0, PlanLog()
        scheduler = make(16, policy="static", num_blocks=5000)
        arrivals = OpenLoop(np.zeros(64, np.int64))
        runs += simulate(trace, arrivals, [scheduler], observer=log, alone=False, compress=compress)
        # Beside ends of plans: the first planning at 0, and the one after which nothing is left.
        # A run is lengthened up to three times.
        assert num_events <= 2 + len(log.plans) * (4 if compress else 1)
        counts.append(len(log.plans))
    assert_same(*runs)
    # A batch has its prompts, and a plan for each end of a request.
    assert counts[0] <= 2 * 64 + 4 and counts[1] == len(runs[0].steps) > 20 * counts[0]


DELAY = 10_000


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(
    ("arrivals", "starts"),
    [
        ([100], [100 + DELAY]),
        ([100, 200], [100 + DELAY] * 2),
        ([100, 200, 300], [300] * 3),  # a full batch
        ([100, 100 + DELAY], [100 + DELAY] * 2),
        # The third comes when two tokens of the batch are there, and waits for its end or its own delay.
        ([100, 200, 100 + DELAY + 1500], [100 + DELAY] * 2 + [100 + 2 * DELAY + 1500]),
    ],
)
def test_a_static_batch_waits_for_more_requests_as_long_as_it_may(
    arrivals: list[int], starts: list[int], compress: bool
) -> None:
    n = len(arrivals)
    limits = Limits(max_num_seqs=3, max_num_batched_tokens=100)
    policy = Static(by_arrival, Preemption(), StaticOptions(max_queue_delay_s=DELAY * 1e-9))
    scheduler = Scheduler(BlockManager(100, 4), policy, limits)
    log = PlanLog()
    simulate(
        simple_trace([5] * n, [4] * n), OpenLoop(np.array(arrivals)), [scheduler], FlatCost(1000),
        observer=log, compress=compress,
    )  # fmt: skip
    assert sorted(request.first_scheduled_time for request in log.finished) == starts  # type: ignore[type-var]


# -- several sequences of a request -----------------------------------------------------------------------------------
