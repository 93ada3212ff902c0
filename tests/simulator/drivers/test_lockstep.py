"""Servers in lockstep: the slowest sets the pace, and idle ones run dummy steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.core.planning.policy_options import NoOptions
from engine.core.routing.round_robin import RoundRobin
from engine.core.work import StepWork
from harness.workload.arrivals import OpenLoop
from harness.workload.content import request_factory
from simulator.drivers.alone import run_alone
from simulator.drivers.clock import Clock
from simulator.drivers.lockstep import Lockstep, Shared
from simulator.drivers.phases import ARRIVALS
from simulator.fleets.gateway import Gateway
from simulator.replica import Replica
from tests.simulator.replicas import FlatCost, PlanLog, make
from tests.simulator.workloads import simple_trace


class ByTokens(FlatCost):
    """1 us, and 10 ns for each prompt token."""

    def step_ns(self, work: StepWork) -> int:
        return 1000 + 10 * sum(chunk.num_tokens for chunk in work.chunks)


def nothing(num_tokens: Sequence[int]) -> int:
    return 0


def serve(
    prompts: list[int],
    outputs: list[int],
    times: NDArray[np.int64],
    num_servers: int,
    costs: tuple[FlatCost, ...] = (),
    shared_ns: Shared = nothing,
    **options: Any,
) -> list[PlanLog]:
    """By servers whose steps `costs` price, by default all by tokens; `options` of their schedulers."""
    env, logs = Clock(), [PlanLog() for _ in range(num_servers)]
    prices = costs or [ByTokens()] * num_servers
    replicas = [Replica(make(8, **options), cost, log, compress=False) for cost, log in zip(prices, logs, strict=True)]
    trace = simple_trace(prompts, outputs)
    gateway = Gateway(OpenLoop(times), request_factory(trace, 4), replicas, RoundRobin(NoOptions()))
    Lockstep(env, replicas, shared_ns)
    for time in np.unique(times).tolist():
        env.timetable.call(ARRIVALS, time, lambda call: gateway.dispatch(env.now))
    env.run()
    assert sorted(request.request_id for log in logs for request in log.finished) == list(range(len(prompts)))
    return logs


def test_all_servers_step_together_at_the_pace_of_the_slowest() -> None:
    rng = np.random.default_rng(0)
    n = 60
    times = np.sort(rng.integers(0, 200_000, n))
    logs = serve(rng.integers(1, 90, n).tolist(), rng.integers(1, 40, n).tolist(), times, 3)
    spans: dict[int, int] = {}
    for log in logs:
        for start, durations in log.plans:
            (duration,) = durations.tolist()
            assert spans.setdefault(start, duration) == duration
    starts = np.array(sorted(spans))
    assert (np.diff(starts) >= [spans[start] for start in starts[:-1].tolist()]).all(), "no step begins within another"
    assert {len(log.plans) for log in logs} != {len(spans)}, "some server was idle beside others"


def test_a_lone_request_is_as_fast_as_its_slowest_neighbour() -> None:
    alone = serve([4], [5], np.array([0]), 2)[0]
    beside = serve([4, 90], [5, 1], np.array([0, 0]), 2)[0]
    assert alone.plans[0][1].tolist() == [1040] and beside.plans[0][1].tolist() == [1900]
    assert [each[1].tolist() for each in beside.plans[1:]] == [[1000]] * 4


def test_a_server_without_work_runs_a_dummy_step_beside_the_others() -> None:
    busy, idle = serve([4], [3], np.array([0]), 2, (FlatCost(1000), FlatCost(5000)))
    assert [durations.tolist() for _, durations in busy.plans] == [[5000]] * 3 and not idle.plans


def test_what_ranks_share_is_of_the_tokens_of_all_and_idle_ones_have_one() -> None:
    busy, _ = serve([4], [3], np.array([0]), 2, shared_ns=lambda num_tokens: 100 * sum(num_tokens))
    assert [durations.tolist() for _, durations in busy.plans] == [[1040 + 500], [1000 + 200], [1000 + 200]]


@pytest.mark.parametrize("ahead", [True, False])
def test_one_server_in_lockstep_is_one_alone(ahead: bool) -> None:
    rng = np.random.default_rng(3)
    n = 40
    times = np.sort(rng.integers(0, 100_000, n))
    prompts, outputs = (rng.integers(1, most, n).tolist() for most in (90, 40))
    (log,) = serve(prompts, outputs, times, 1, async_scheduling=ahead)
    alone = PlanLog()
    replica = Replica(make(8, async_scheduling=ahead), ByTokens(), alone, compress=False)
    arrivals = OpenLoop(times)
    replica.source = Gateway(arrivals, request_factory(simple_trace(prompts, outputs), 4), [replica])
    run_alone(replica)
    assert [(start, each.tolist()) for start, each in log.plans] == [(s, each.tolist()) for s, each in alone.plans]


def test_servers_that_plan_ahead_see_an_arrival_a_step_later() -> None:
    """Beside a busy one: the step that the arrival meets was planned before, and so was the next one."""
    times = np.array([0, 0, 2500])
    for ahead, start in ((False, 2900), (True, 3900)):
        logs = serve([90, 90, 90], [9, 9, 1], times, 2, async_scheduling=ahead)
        assert [at for at, each in logs[0].plans if each.item() > 1000] == [0, start], ahead


@pytest.mark.parametrize("options", [{"compress": True}, {"compress": False, "max_lookahead_steps": 2}])
def test_servers_that_do_not_plan_each_step_are_refused(options: dict[str, int]) -> None:
    replica = Replica(make(4), FlatCost(), PlanLog(), **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="each step is planned on its own"):
        Lockstep(Clock(), [replica], nothing)
