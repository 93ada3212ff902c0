"""One simulated engine as a SimPy process: the real scheduler, and a cost model in place of the execution."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

import numpy as np
import simpy
from numpy.typing import NDArray

from engine.core.plan import StepOutcome, StepPlan
from engine.core.scheduler import Scheduler
from engine.core.sequence import RequestRefusedError, Sequence
from simulator.arrivals import NEVER, Arrivals
from simulator.costs.cost import CostModel

_LONGEST_STEP_NS = 10**14  # more than a day: the sums of such steps would soon leave the range of a time


class ImplausibleStepError(ValueError):
    """The cost model prices a step beyond all reason, as happens when a rate is given in other units."""


class Observer(Protocol):
    """Sees all that happens to a run, whichever engine serves it."""

    def on_refused(self, sequence: Sequence, reason: str) -> None: ...

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: NDArray[np.int64] | int) -> None:
        """A plan ran from `start_ns` on; one duration per step, a bare number for a single one."""

    def on_commit(self, outcome: StepOutcome) -> None: ...


class Replica:
    """Serves what arrives until nothing is left or `stop` is called; time is the environment's, in ns.

    An arrival is seen at the end of the plan during which it comes. A plan is a step, or up to `max_lookahead_steps`
    steps that all only decode. A scheduler with asynchronous scheduling plans a step when the one before it starts: an
    arrival is then seen one step later, unless there is nothing else to do.

    With `compress`, a run of identical decode steps is one event, cut where the next arrival is seen, exactly as if the
    plans were made one by one.

    Raises:
        ValueError: asynchronous scheduling together with more than one step in a plan.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: Scheduler,
        cost_model: CostModel,
        arrivals: Arrivals,
        make_sequence: Callable[[int, int], Sequence],
        observer: Observer,
        *,
        compress: bool = True,
        max_lookahead_steps: int = 1,
    ) -> None:
        if scheduler.async_scheduling and max_lookahead_steps > 1:
            raise ValueError("async_scheduling: each step is planned on its own")
        self._env = env
        self._scheduler = scheduler
        self._cost_model = cost_model
        self._arrivals = arrivals
        self._make_sequence = make_sequence
        self._observer = observer
        self._compress = compress
        self._async = scheduler.async_scheduling
        self._lookahead = max_lookahead_steps
        self._stopping = False
        self.process = env.process(self._serve())

    def stop(self) -> None:
        """End the run after the plan that is under way."""
        self._stopping = True

    def _serve(self) -> Generator[simpy.Event, None, None]:
        env, scheduler, arrivals, observer = self._env, self._scheduler, self._arrivals, self._observer
        planned_at = 0
        while not self._stopping:
            now: int = env.now  # whole, as all delays are
            planning = planned_at if self._async else now
            if arrivals.next_ns <= planning:
                self._deliver(planning)
            plan = scheduler.schedule(planning)
            if plan is None and self._async:
                self._deliver(now)
                plan = scheduler.schedule(now)
            if plan is None:
                if arrivals.next_ns == NEVER:
                    return
                yield env.timeout(arrivals.next_ns - now)
                continue
            plan, durations, total = self._price(plan, now)
            yield env.timeout(total)
            end = now + total
            if self._async:
                # The step to come was planned when the last step of this plan began.
                planned_at = end - (durations if isinstance(durations, int) else int(durations[-1]))
            observer.on_step(plan, now, durations)
            outcome = scheduler.commit(plan, end)
            observer.on_commit(outcome)
            for sequence in outcome.finished:
                arrivals.on_finish(sequence.request_id, end)

    def _deliver(self, until: int) -> None:
        while self._arrivals.next_ns <= until:  # a refusal can release the next request at once
            for arrival, row in self._arrivals.pop_due(until):
                sequence = self._make_sequence(row, arrival)
                try:
                    self._scheduler.add(sequence)
                except RequestRefusedError as refusal:
                    self._observer.on_refused(sequence, str(refusal))
                    self._arrivals.on_finish(row, self._env.now)

    def _price(self, plan: StepPlan, now: int) -> tuple[StepPlan, NDArray[np.int64] | int, int]:
        """Decide how many steps the plan covers, and what each takes."""
        first = self._cost_model.step_ns(plan)
        if first > _LONGEST_STEP_NS:
            raise ImplausibleStepError(f"a step would take {first * 1e-9:.3g} s: check the units of the device's rates")
        # Steps rarely get shorter as contexts grow, so this many reach the next arrival; too few would be as right.
        wait = self._arrivals.next_ns - now
        limit = self._whole_plans((wait - 1) // first) if self._compress else self._lookahead
        limit = min(limit, plan.horizon)
        if limit <= 1:
            return plan, first, first
        durations = self._cost_model.decode_ns(plan, limit)
        ends = durations.cumsum()
        num_steps = min(limit, self._whole_plans(int(ends.searchsorted(wait)))) if self._compress else limit
        return self._scheduler.extend(plan, num_steps), durations[:num_steps], int(ends[num_steps - 1])

    def _whole_plans(self, step: int) -> int:
        """How many steps it is to the end of the plan of this step, counted from 0, during which an arrival comes.

        With asynchronous scheduling, to the end of the step that was planned when that step began.
        """
        return (step // self._lookahead + 1) * self._lookahead + self._async
