"""A pipeline of stages: lanes that overlap, one plan each."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from engine.core.admission.waiting_queue import by_arrival
from engine.core.kv.block_manager import BlockManager
from engine.core.plan import StepPlan
from engine.core.planning.step_planner import Limits
from engine.core.policies.static import Static, StaticOptions
from engine.core.running.preemption import Preemption
from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.work import StepWork
from harness.workload.arrivals import ClosedLoop, OpenLoop, Sessions
from harness.workload.content import request_factory
from harness.workload.trace import Trace
from simulator.arrivals import Arrivals
from simulator.copies.transfers import NoTransfers
from simulator.costs.cost import CostModel
from simulator.decode_run import Durations
from simulator.fleets.fleet import Fleet
from simulator.replica import Replica
from tests.simulator.replicas import FlatCost, PlanLog
from tests.simulator.workloads import simple_trace

STAGE_NS = 1000


class LaneLog(PlanLog):
    """Also keeps when each lane had a plan under way."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Durations | int) -> None:
        super().on_step(plan, start_ns, durations_ns)
        assert isinstance(durations_ns, int)
        self.lanes[plan.lane].append((start_ns, start_ns + durations_ns))


class ByTokens(FlatCost):
    """A stage whose time depends on the work, so that lanes get out of step."""

    def step_ns(self, work: StepWork) -> int:
        return 500 + 70 * sum(chunk.num_tokens for chunk in work.chunks) + 130 * work.num_decodes


def make(num_lanes: int, *, seats: int = 4, **options: Any) -> Scheduler:
    return make_scheduler(
        SchedulerOptions(),
        num_blocks=1000,
        block_size=4,
        max_num_seqs=seats * num_lanes,
        max_num_batched_tokens=100,
        num_lanes=num_lanes,
        **options,
    )


def serve(trace: Trace, arrivals: Arrivals, scheduler: Scheduler, stages: list[CostModel]) -> LaneLog:
    log = LaneLog()
    replica = Replica(scheduler, FlatCost(), log, transfers=NoTransfers())
    Fleet(arrivals, request_factory(trace, 4), [replica], stages=[stages]).run()
    assert not scheduler.unfinished
    scheduler.check_integrity()
    assert len(log.finished) == len(trace.table)
    assert log.num_output_tokens == dict(enumerate(trace.table["num_output_tokens"]))
    return log


def backlog(num_lanes: int) -> int:
    """When 80 requests are served that are there from the start, by two stages."""
    trace = simple_trace([10] * 80, [20] * 80)
    stages: list[CostModel] = [FlatCost(STAGE_NS), FlatCost(STAGE_NS)]
    log = serve(trace, OpenLoop(np.zeros(80, np.int64)), make(num_lanes), stages)
    return max(request.finish_time or 0 for request in log.finished)


def test_two_lanes_serve_a_backlog_nearly_twice_as_fast_as_one() -> None:
    one, two = backlog(1), backlog(2)
    assert one == 80 // 4 * 20 * 2 * STAGE_NS  # batches of 4 requests, each token through both stages
    assert 1.95 < one / two <= 2


def test_the_slowest_stage_sets_the_pace_and_a_lane_more_than_stages_does_not_help() -> None:
    trace = simple_trace([10] * 80, [20] * 80)
    stages: list[CostModel] = [FlatCost(STAGE_NS), FlatCost(3 * STAGE_NS)]
    log = serve(trace, OpenLoop(np.zeros(80, np.int64)), make(2), stages)
    # One step of each batch after the other in the second stage, which is never idle but for the first step.
    assert max(request.finish_time or 0 for request in log.finished) == 400 * 3 * STAGE_NS + STAGE_NS


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_a_lone_request_waits_for_all_stages_in_every_step(num_stages: int) -> None:
    stages: list[CostModel] = [FlatCost(STAGE_NS * (1 + i)) for i in range(num_stages)]
    log = serve(simple_trace([10], [7]), OpenLoop(np.array([500])), make(num_stages), stages)
    (request,) = log.finished
    each = STAGE_NS * sum(range(1, num_stages + 1))
    assert (request.first_token_time, request.finish_time) == (500 + each, 500 + 7 * each)


@pytest.mark.parametrize("source", ["open", "closed", "sessions"])
@pytest.mark.parametrize("num_lanes", [1, 2, 3])
def test_a_lane_never_has_two_plans_under_way_and_every_request_gets_its_tokens(source: str, num_lanes: int) -> None:
    rng = np.random.default_rng(num_lanes)
    n = 60
    sessions = {"session_id": np.repeat(np.arange(12), 5)} if source == "sessions" else {}
    trace = simple_trace(rng.integers(1, 80, n).tolist(), rng.integers(1, 60, n).tolist(), **sessions)
    arrivals: dict[str, Arrivals] = {
        "open": OpenLoop(np.sort(rng.integers(0, 500_000, n))),
        "closed": ClosedLoop(n, 7),
        "sessions": Sessions(np.repeat(np.arange(12), 5), np.arange(12) * 9000, rng.integers(0, 50_000, n)),
    }
    log = serve(trace, arrivals[source], make(num_lanes), [ByTokens(), FlatCost(1500), ByTokens()])
    assert len(log.lanes) == num_lanes
    for plans in log.lanes.values():
        assert all(end <= start for (_, end), (start, _) in zip(plans, plans[1:], strict=False))
    starts = np.sort([start for plans in log.lanes.values() for start, _ in plans])
    assert (np.diff(starts) >= 500).all()  # the first stage takes one plan at a time


def test_the_policy_may_let_an_idle_pipeline_wait() -> None:
    delay = 10_000
    limits = Limits(max_num_seqs=8, max_num_batched_tokens=100)
    policy = Static(by_arrival, Preemption(), StaticOptions(max_queue_delay_s=delay * 1e-9))
    scheduler = Scheduler(BlockManager(100, 4), policy, limits, num_lanes=2)
    log = serve(simple_trace([5], [3]), OpenLoop(np.array([100])), scheduler, [FlatCost(STAGE_NS)] * 2)
    assert log.finished[0].first_scheduled_time == 100 + delay


def test_a_scheduler_that_swaps_is_refused() -> None:
    with pytest.raises(ValueError, match="host tier"):
        serve(simple_trace([5], [3]), OpenLoop(np.array([0])), make(2, num_host_blocks=9), [FlatCost()] * 2)
