"""A simulated engine whose layers lie on several devices, one stage after the other: a pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

import simpy

from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.sequence import Request, RequestRefusedError
from simulator.arrivals import NEVER
from simulator.costs.cost import CostModel
from simulator.replica import Observer, Router


class Pipeline:
    """Serves requests with a scheduler of as many lanes as there are stages.

    A plan goes through all stages; each stage works on one plan at a time, in the order they were launched, so the
    plans of different lanes overlap. A lane is planned again when its plan has left the last stage.

        stage 0   | lane 0 | lane 1 | lane 0 | lane 1 |
        stage 1            | lane 0 | lane 1 | lane 0 | lane 1 |

    Args:
        stages: the cost model of each stage, which prices its share of a step.

    Raises:
        ValueError: the scheduler has a host tier, to which a pipeline has no link.
    """

    def __init__(
        self, env: simpy.Environment, scheduler: Scheduler, stages: list[CostModel], router: Router, observer: Observer
    ) -> None:
        if scheduler.blocks.host is not None:
            raise ValueError("a pipeline cannot move blocks to a host tier")
        self._env = env
        self._scheduler = scheduler
        self._stages = stages
        self._router = router
        self._observer = observer
        self._inbox: deque[Request] = deque()
        self._stage_free_at = [0] * len(stages)
        self._idle_lanes = deque(range(scheduler.num_lanes))
        self._wait_until = NEVER  # when an idle lane wants to be planned again, if nothing happens before
        self._wake = env.event()
        env.process(self._serve())

    def submit(self, request: Request) -> None:
        """Take a request; it is seen when the next step is planned."""
        self._inbox.append(request)
        self.wake()

    def wake(self) -> None:
        """Look again at what there is to do."""
        if not self._wake.triggered:
            self._wake.succeed()

    def _serve(self) -> Generator[simpy.Event, None, None]:
        """Launch the plan of an idle lane whenever the first stage is free."""
        while True:
            self._wake = self._env.event()
            now: int = self._env.now
            self._take_in(now)
            plan = self._schedule(now) if self._stage_free_at[0] <= now else None
            if plan is not None:
                self._env.process(self._finish(plan, now, self._launch(plan, now)))
                continue
            wake_at = min(self._router.next_ns, self._wait_until)
            if self._stage_free_at[0] > now:
                wake_at = self._stage_free_at[0]
            if wake_at == NEVER:
                yield self._wake
            else:
                yield self._wake | self._env.timeout(wake_at - now)

    def _schedule(self, now: int) -> StepPlan | None:
        """A plan for the first idle lane that has anything to do."""
        self._wait_until = NEVER
        for _ in range(len(self._idle_lanes)):
            lane = self._idle_lanes.popleft()
            plan = self._scheduler.schedule(now, lane)
            if plan is not None:
                return plan
            if self._scheduler.wait_until is not None:
                self._wait_until = min(self._wait_until, self._scheduler.wait_until)
            self._idle_lanes.append(lane)
        return None

    def _launch(self, plan: StepPlan, now: int) -> int:
        """Send a plan through the stages; returns when it leaves the last one."""
        end = now
        for stage, cost_model in enumerate(self._stages):
            start = max(end, self._stage_free_at[stage])
            end = self._stage_free_at[stage] = start + cost_model.step_ns(plan.work)
        return end

    def _finish(self, plan: StepPlan, start: int, end: int) -> Generator[simpy.Event, None, None]:
        yield self._env.timeout(end - start)
        self._observer.on_step(plan, start, end - start)
        outcome = self._scheduler.commit(plan, end)
        self._observer.on_commit(outcome)
        self._idle_lanes.append(plan.lane)
        for request in outcome.finished:
            self._router.on_finish(request, end)
        self.wake()

    def _take_in(self, now: int) -> None:
        if self._router.next_ns <= now:
            self._router.dispatch(now)
        while self._inbox:
            request = self._inbox.popleft()
            try:
                self._scheduler.add(request)
            except RequestRefusedError as refusal:
                self._observer.on_refused(request, str(refusal))
                self._router.on_finish(request, now)
