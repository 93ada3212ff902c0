"""A server whose layers lie on several devices, one stage after the other: a pipeline.

A plan goes through all stages; each stage works on one plan at a time, in the order they were launched, so the plans of
different lanes overlap. A lane is planned again when its plan has left the last stage.

    stage 0   | lane 0 | lane 1 | lane 0 | lane 1 |
    stage 1            | lane 0 | lane 1 | lane 0 | lane 1 |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

import simpy

from engine.core.plan import StepPlan
from simulator.arrivals import NEVER
from simulator.costs.cost import CostModel
from simulator.drivers.clock import Sleep
from simulator.replica import Replica


class Pipeline:
    """Runs a replica, whose scheduler has as many lanes as there are stages, in an environment.

    Args:
        stages: the cost model of each stage, which prices its share of a step.

    Raises:
        ValueError: the replica has a host tier, to which a pipeline has no link, or plans of several steps.
    """

    def __init__(self, env: simpy.Environment, replica: Replica, stages: Sequence[CostModel]) -> None:
        if replica.scheduler.blocks.host is not None:
            raise ValueError("a pipeline cannot move blocks to a host tier")
        if replica.plans_several:
            raise ValueError("a pipeline plans each step on its own")
        self._env = env
        self._replica = replica
        self._stages = stages
        self._stage_free_at = [0] * len(stages)
        self._idle_lanes = deque(range(replica.scheduler.num_lanes))
        self._sleep = Sleep(env)
        env.process(self._serve())
        replica.on_change = self._sleep.wake

    def _serve(self) -> Generator[Any, Any, None]:
        """Launch the plan of an idle lane whenever the first stage is free."""
        while not self._replica.is_stopping:
            yield self._sleep.to_plan()
            now, wake_at = self._env.now, self._stage_free_at[0]
            if wake_at <= now:
                plan, wake_at = self._plan(now)
                if plan is not None:
                    self._env.process(self._pass(plan, now, self._launch(plan, now)))
                    continue
            yield self._sleep.until(wake_at)

    def _plan(self, now: int) -> tuple[StepPlan | None, int]:
        """A plan for the first idle lane that has anything to do; or when to look again, if nothing happens before."""
        wake_at = NEVER
        for _ in range(len(self._idle_lanes)):
            lane = self._idle_lanes.popleft()
            plan = self._replica.plan(now, lane)
            if plan is not None:
                return plan, now
            wake_at = min(wake_at, self._replica.wake_ns())
            self._idle_lanes.append(lane)
        return None, wake_at

    def _launch(self, plan: StepPlan, now: int) -> int:
        """Send a plan through the stages; returns when it leaves the last one."""
        end = now
        for stage, cost_model in enumerate(self._stages):
            start = max(end, self._stage_free_at[stage])
            end = self._stage_free_at[stage] = start + cost_model.step_ns(plan.work)
        return end

    def _pass(self, plan: StepPlan, start: int, end: int) -> Generator[Any, Any, None]:
        yield self._env.timeout(end - start)
        self._replica.finish(plan, start, end - start)
        self._idle_lanes.append(plan.lane)
        self._sleep.wake()
