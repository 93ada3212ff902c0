"""One simulated engine as a SimPy process: the real scheduler, and a cost model in place of the execution.

A run of several replicas takes a `simpy.Environment`; one that is alone may take a `LoneEnvironment`, which is faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import simpy
from numpy.typing import NDArray

from engine.core.plan import StepOutcome, StepPlan
from engine.core.scheduler import Scheduler
from engine.core.sequence import Request, RequestRefusedError
from simulator.arrivals import NEVER
from simulator.beams import ChooseParents, keep_all
from simulator.costs.cost import CostModel
from simulator.lone import Environment, Waits
from simulator.transfers import NoTransfers, TransferEngine

_LONGEST_STEP_NS = 10**14  # more than a day: the sums of such steps would soon leave the range of a time
_LONGEST_RUN_NS = 1 << 62
_TOO_LONG = "longer than a simulation can last: check the units of the device's rates"


class ImplausibleStepError(ValueError):
    """The cost model prices a step beyond all reason, as happens when a rate is given in other units."""


class Observer(Protocol):
    """Sees all that happens to a run, whichever engine serves it."""

    def on_refused(self, request: Request, reason: str) -> None: ...

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None:
        """A plan that runs next waits for its transfers first; not called of a plan without any."""

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: NDArray[np.int64] | int) -> None:
        """A plan ran from `start_ns` on; one duration per step, a bare number for a single one."""

    def on_commit(self, outcome: StepOutcome) -> None: ...


class Router(Protocol):
    """Where requests come from, and who is told when they end."""

    is_shared: bool  # a request that ends on one of its replicas may bring one to another
    next_ns: int  # no request comes before this time, unless one that runs now ends; NEVER where none does

    def dispatch(self, until_ns: int) -> None:
        """Submit all requests that arrive up to `until_ns` to their replicas."""

    def on_finish(self, request: Request, now_ns: int) -> None: ...


class Replica:
    """Serves the requests that are submitted until none is left or `stop` is called; time is the environment's, in ns.

    A request is seen at the end of the plan during which it arrives. A plan is a step, or up to `max_lookahead_steps`
    steps that all only decode. A scheduler that plans ahead plans a step when the one before it starts: an arrival is
    then seen one step later, unless there is nothing else to do.

    With `compress`, a run of decode steps without decisions is one event, exactly as if the plans were made one by one.
    It is cut where the next request is seen: at the router's `next_ns` if that is known beforehand, or else when the
    request is submitted or the router calls `wake`. The plan is extended only after that is known.

    Several replicas may share a router. All that ends at a time ends before anything is planned at that time, so that
    it does not matter in which order replicas come to that time.

    Args:
        transfers: what it takes to move blocks between tiers, for schedulers with a host tier.
        choose_parents: which beams of a request continue others after a step; by default none.

    Raises:
        ValueError: planning ahead together with more than one step in a plan, several lanes, or a host tier without
            `transfers`.
    """

    def __init__(
        self,
        env: Environment,
        scheduler: Scheduler,
        cost_model: CostModel,
        router: Router,
        observer: Observer,
        *,
        compress: bool = True,
        max_lookahead_steps: int = 1,
        transfers: TransferEngine | None = None,
        choose_parents: ChooseParents = keep_all,
    ) -> None:
        if scheduler.plans_ahead and max_lookahead_steps > 1:
            raise ValueError("async_scheduling: each step is planned on its own")
        if scheduler.num_lanes > 1:
            raise ValueError("a replica has one lane; several are for pipelines")
        if scheduler.blocks.host is not None and transfers is None:
            raise ValueError("a scheduler with a host tier needs a link to it")
        self._env = env
        self._scheduler = scheduler
        self._cost_model = cost_model
        self._router = router
        self._observer = observer
        self._compress = compress
        self._lookahead = max_lookahead_steps
        self._transfers = transfers or NoTransfers()
        self._choose_parents = choose_parents
        self._inbox: deque[Request] = deque()
        self._can_wake = False  # it waits for something that a new request would change
        self._stopping = False
        self.process = env.process(self._serve())

    def submit(self, request: Request) -> None:
        """Take a request; it is seen when the next step is planned."""
        self._inbox.append(request)
        if self._can_wake:
            self.wake()

    def wake(self) -> None:
        """Look at the router again: its next request comes earlier than it said."""
        if self._can_wake:
            self._can_wake = False
            self.process.interrupt()

    def stop(self) -> None:
        """End the run after the plan that is under way."""
        self._stopping = True

    def _serve(self) -> Waits:
        env, scheduler, router, observer = self._env, self._scheduler, self._router, self._observer
        inbox, transfers, is_shared = self._inbox, self._transfers, router.is_shared
        plans_ahead = scheduler.plans_ahead
        plan: StepPlan | None = None  # made ahead
        while not self._stopping:
            now: int = env.now  # whole, as all delays are
            if plan is None:
                if is_shared and env.peek() == now:
                    yield env.timeout(0)  # what ends now elsewhere may bring a request
                if router.next_ns <= now or inbox or transfers.next_ns <= now:
                    self._take_in(now)
                plan = scheduler.schedule(now)
            if plan is None:
                yield from self._idle(now)
                continue
            price = self._price(plan, now)
            if isinstance(price, int):
                yield env.timeout(price)
                total = last = price
                observer.on_step(plan, now, price)
            else:
                durations, ends = price
                num_steps = len(ends)
                if is_shared:
                    num_steps = yield from self._run(now, ends)
                else:
                    yield env.timeout(ends.item(-1))
                plan = scheduler.extend(plan, num_steps)
                total, last = ends.item(num_steps - 1), durations.item(num_steps - 1)
                observer.on_step(plan, now, durations[:num_steps])
            end = now + total
            if end > _LONGEST_RUN_NS:
                raise ImplausibleStepError(f"the run would take {_TOO_LONG}")
            planned = None
            if plans_ahead:
                # The step to come was planned when the last step of this plan began.
                started = end - last
                self._take_in(started)
                planned = scheduler.schedule(started)
            outcome = scheduler.commit(plan, end)
            observer.on_commit(outcome)
            for request in outcome.beams:
                scheduler.replace_beams(request, self._choose_parents(request))
            for request in outcome.finished:
                router.on_finish(request, end)
                request.forget_sequences()
            plan = planned

    def _take_in(self, until: int) -> None:
        """Hand the scheduler what has arrived up to `until`, and what came back from another tier."""
        router, inbox = self._router, self._inbox
        if self._transfers.next_ns <= until:
            for sequence in self._transfers.pop_ready(until):
                self._scheduler.ready(sequence)
        while True:  # a refusal can release the next request at once
            if router.next_ns <= until:
                router.dispatch(until)
            if not inbox or inbox[0].arrival_time > until:
                return
            request = inbox.popleft()
            try:
                self._scheduler.add(request)
            except RequestRefusedError as refusal:
                self._observer.on_refused(request, str(refusal))
                router.on_finish(request, self._env.now)
                request.forget_sequences()

    def _idle(self, now: int) -> Waits:
        """Wait for the next thing that the scheduler can act on; for ever where nothing comes."""
        wake_at = self._next_event_ns()
        if self._scheduler.wait_until is not None:
            wake_at = min(wake_at, self._scheduler.wait_until)
        self._can_wake = True
        with suppress(simpy.Interrupt):
            yield self._env.event() if wake_at == NEVER else self._env.timeout(wake_at - now)
        self._can_wake = False

    def _run(self, start: int, ends: NDArray[np.int64]) -> Generator[Any, Any, int]:
        """Let steps that end at these times after `start` pass; returns how many do before a request must be seen."""
        env, num_steps = self._env, len(ends)
        while True:
            end = start + ends.item(num_steps - 1)
            self._can_wake = self._compress
            try:
                yield env.timeout(end - env.now)
            except simpy.Interrupt:
                if env.now < end:
                    if env.peek() == env.now:
                        yield env.timeout(0)
                    self._router.dispatch(env.now)  # to whichever replica it goes
                    wait = max(self._next_event_ns(), env.now) - start
                    num_steps = min(num_steps, self._steps_until_seen(wait, ends))
                    continue
            self._can_wake = False
            return num_steps

    def _price(self, plan: StepPlan, now: int) -> int | tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What the only step of the plan takes; or what each step takes, and when it ends, of as many steps as can run
        before the next request is seen."""
        first = 0
        if plan.transfers or plan.parked:
            first = self._transfers.start(plan, now)
            self._observer.on_transfers(plan, first)
        work = plan.work
        if work.num_decodes or work.chunks:
            first += self._cost_model.step_ns(work)
        if first > _LONGEST_STEP_NS:
            raise ImplausibleStepError(f"a step would take {first * 1e-9:.3g} s: check the units of the device's rates")
        if plan.horizon == 1:
            return first
        # Steps rarely get shorter as contexts grow, so this many reach the next arrival; too few would be as right.
        wait = self._next_event_ns() - now
        limit = self._whole_plans((wait - 1) // first) if self._compress else self._lookahead
        limit = min(limit, plan.horizon)
        if limit <= 1:
            return first
        durations = self._cost_model.decode_ns(work, limit)
        # Times grow with the contexts. A time beyond the range of int64 has become negative, a sum of times may.
        if not 0 < (last := durations.item(-1)) <= _LONGEST_STEP_NS or last * limit > _LONGEST_RUN_NS:
            raise ImplausibleStepError(f"{limit} steps would take {_TOO_LONG}")
        ends = np.add.accumulate(durations)
        num_steps = min(limit, self._steps_until_seen(wait, ends)) if self._compress else limit
        return durations[:num_steps], ends[:num_steps]

    def _next_event_ns(self) -> int:
        """Nothing that the scheduler must see comes before this time, as far as is known."""
        next_ns = min(self._router.next_ns, self._transfers.next_ns)
        return min(next_ns, self._inbox[0].arrival_time) if self._inbox else next_ns

    def _steps_until_seen(self, wait: int, ends: NDArray[np.int64]) -> int:
        """How many steps run before a request is seen that comes `wait` ns after the first of them begins."""
        if wait <= 0 and self._scheduler.plans_ahead:
            return 1  # in time for the step that is planned when this one begins
        return self._whole_plans(int(ends.searchsorted(wait)))

    def _whole_plans(self, step: int) -> int:
        """How many steps it is to the end of the plan of this step, counted from 0, during which a request comes.

        When steps are planned ahead, to the end of the step that was planned when that step began.
        """
        return (step // self._lookahead + 1) * self._lookahead + self._scheduler.plans_ahead
