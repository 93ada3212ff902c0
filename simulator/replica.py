"""One simulated server: the real scheduler, and a cost model in place of the execution.

A replica knows what happens to it, and not how time passes: it takes in requests, plans steps, prices them and commits
them. A driver (`simulator.drivers`) lets the time between these pass:

    take_in(until) ──▶ plan(now) ──▶ price(plan, now) ──▶ the driver waits ──▶ finish(plan, now, price)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.sequence import Request
from simulator.arrivals import NEVER, Source
from simulator.copies.transfers import TransferEngine
from simulator.costs.cost import CostModel
from simulator.decode_run import Run
from simulator.observer import Observer

_LONGEST_STEP_NS: Final = 10**14  # more than a day: the sums of such steps would soon leave the range of a time
_LONGEST_RUN_NS: Final = 1 << 61
_GROWTH: Final = 8  # times as many steps, since to price many at once takes hardly longer than to price one
_TOO_LONG = "longer than a simulation can last: check the units of the device's rates"


class ImplausibleStepError(ValueError):
    """The cost model prices a step beyond all reason, as happens when a rate is given in other units."""


class Replica:
    """Serves the requests that are submitted; times are whole ns.

    A request is seen at the end of the plan during which it arrives. A plan is a step, or up to `max_lookahead_steps`
    steps that all only decode. A scheduler that plans ahead plans a step when the one before it starts: an arrival is
    then seen one step later, unless there is nothing else to do.

    With `compress`, a run of decode steps without decisions is priced at once, exactly as if the plans were made one by
    one. It is cut where the next request is seen: at the source's `next_ns`, or by the driver when a request is
    submitted. The plan is extended only after that is known.

    Args:
        transfers: what it takes to move blocks between tiers, for schedulers with a host tier.

    Attributes:
        source: where requests come from; set before the first is due.
        on_finish: told of each request that ends, and when.
        on_first_token: told of each request that has its first token; None for nobody.
        on_statistics: called when vLLM sends its statistics (`View.watch_steps`); None for nobody.
        on_change: called when a request is submitted or a transfer of another server ends earlier than what was known;
            a driver's.
        is_stopping: nothing is planned any more.
        reach: so many plans are priced at first, and more once these have passed (`lengthen`); a driver's.
        last_step_ns: what the last step that has ended took.
        outlook: what knows when the next request comes to any server: plans are priced up to then, if that is longer.

    Raises:
        ValueError: planning ahead together with more than one step in a plan, or a host tier without `transfers`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost_model: CostModel,
        observer: Observer,
        *,
        compress: bool = True,
        max_lookahead_steps: int = 1,
        transfers: TransferEngine | None = None,
    ) -> None:
        if scheduler.plans_ahead and max_lookahead_steps > 1:
            raise ValueError("async_scheduling: each step is planned on its own")
        if scheduler.blocks.host is not None and transfers is None:
            raise ValueError("a scheduler with a host tier needs a link to it")
        self.scheduler = scheduler
        self.observer = observer
        self.cost_model = cost_model
        self.compress = compress
        self.source = Source()
        self.on_finish: Callable[[Request, int], None] = lambda request, now_ns: None
        self.on_first_token: Callable[[Request], None] | None = None
        self.on_statistics: Callable[[], None] | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.is_stopping = False
        self.reach = NEVER
        self.outlook = self.source
        self.last_step_ns = 0
        self._lookahead = max_lookahead_steps
        self._transfers = transfers
        self._inbox: deque[tuple[int, Request]] = deque()  # and when each came
        self._start = 0  # of the run of steps that is under way
        self._under_way: Run | None = None
        self._is_empty_ahead = False  # vLLM runs a step of nothing after the one that has ended

    @property
    def num_waiting(self) -> int:
        return self.scheduler.num_waiting + len(self._inbox)

    @property
    def plans_several(self) -> bool:
        """Whether more than one step is planned before the next one is known to have ended."""
        return self._lookahead > 1 or self.scheduler.plans_ahead

    def num_free_blocks(self, now: int) -> int:
        """KV blocks that are free at a time within the run of steps that is under way, or after it."""
        num_free = self.scheduler.blocks.num_free_blocks
        if self._under_way is not None:
            run, passed_ns = self._under_way, now - self._start
            # Steps after the first that are planned by now: where one ends now, the next one only if planned ahead.
            num_later = run.num_up_to(passed_ns) if self.scheduler.plans_ahead else run.num_before(passed_ns)
            num_free -= self.scheduler.num_blocks_due(num_later)
        return num_free

    def lose(self, scheduler: Scheduler) -> list[Request]:
        """The server has died and begins anew with an empty `scheduler`; returns all that it had waiting or running."""
        lost = [*self.scheduler.unfinished, *(request for _, request in self._inbox)]
        self.scheduler = scheduler
        self._inbox.clear()
        self._under_way = None
        return sorted(lost, key=lambda request: request.request_id)

    def submit(self, request: Request, now: int) -> None:
        """Take a request that the scheduler will not refuse; it is seen when the next step is planned."""
        self._inbox.append((now, request))
        self.on_change()

    def withdraw(self, request: Request) -> None:
        """Take out a request that was submitted and has not ended: nobody waits for it any more."""
        waits = next((each for each in self._inbox if each[1] is request), None)
        if waits is not None:
            self._inbox.remove(waits)
        else:
            self.scheduler.abort(request.request_id)

    def next_event_ns(self) -> int:
        """Nothing that the scheduler must see comes before this time, as far as is known."""
        next_ns = self.source.next_ns
        if self._transfers is not None and (moved_ns := self._transfers.next_ns) < next_ns:
            next_ns = moved_ns
        if self._inbox and (came_ns := self._inbox[0][0]) < next_ns:
            next_ns = came_ns
        return next_ns

    def wake_ns(self) -> int:
        """When to plan again after there was nothing to plan; NEVER where only a new request can change that."""
        next_ns, until = self.next_event_ns(), self.scheduler.wait_until
        return next_ns if until is None else min(next_ns, until)

    def take_in(self, until: int) -> None:
        """Hand the scheduler what has arrived up to `until`, and what came back from another tier."""
        if self._transfers is not None and self._transfers.next_ns <= until:
            for sequence in self._transfers.pop_ready(until):
                self.scheduler.ready(sequence)
        if self.source.next_ns <= until:
            self.source.dispatch(until)
        inbox = self._inbox
        while inbox and inbox[0][0] <= until:
            self.scheduler.add(inbox.popleft()[1])

    def plan(self, now: int, lane: int = 0) -> StepPlan | None:
        """The next plan of a lane, of all that has arrived by now; None if there is nothing to do yet."""
        if self.source.next_ns <= now or self._inbox or self._transfers is not None:
            self.take_in(now)
        plan = self.scheduler.schedule(now, lane)
        if self._is_empty_ahead and self.on_statistics is not None:
            self._is_empty_ahead = False
            self.on_statistics()
        return plan

    def price(self, plan: StepPlan, now: int) -> int | Run:
        """What the only step of the plan takes; or what each step takes, and when it ends, of as many steps as can run
        before the next request is seen.

        Raises:
            ImplausibleStepError: a time is beyond all reason.
        """
        first = 0
        if plan.transfers or plan.parked or self.scheduler.blocks.connector is not None:
            first = 0 if self._transfers is None else self._transfers.start(plan, now)
            self.observer.on_transfers(plan, first)
        work = plan.work
        if work.num_decodes or work.chunks:
            first += self.cost_model.step_ns(work)
        if first > _LONGEST_STEP_NS:
            raise ImplausibleStepError(f"a step would take {first * 1e-9:.3g} s: check the units of the device's rates")
        if plan.horizon == 1:
            return first
        # Steps rarely get shorter as contexts grow, so this many reach the next arrival; too few would be as right.
        limit = self._whole_plans((self.next_event_ns() - now - 1) // first) if self.compress else self._lookahead
        if limit > plan.horizon:
            limit = plan.horizon
        if limit > (reach := self.reach * self._lookahead):
            limit = min(limit, max(reach, self._steps_foreseen(now, first)))
        if limit <= 1:
            return first
        return self._started(now, Run(self.cost_model.decode_ns(work, limit)))

    def lengthen(self, plan: StepPlan, start: int, price: int | Run) -> int | Run | None:
        """The same run with more steps, where the plan goes on and no request is seen at the run's end."""
        passed, end = (1, price) if isinstance(price, int) else (price.num_steps, price.end)
        wait = self.next_event_ns() - start
        if passed == plan.horizon or not self.compress or self.is_stopping or (wait <= end and not self.plans_several):
            return None
        run = Run([price]) if isinstance(price, int) else price
        limit = max(_GROWTH * passed, self._steps_foreseen(start, run.first_ns))
        if wait <= end:
            limit = self._steps_until_seen(wait, run)
        limit = min(limit, plan.horizon)
        if limit <= passed:
            return None
        later = self.cost_model.decode_ns(plan.work.after(passed), limit - passed)
        return self._started(start, run.followed_by(later))

    def cut(self, start: int, run: Run) -> int | Run:
        """The steps of the run that pass before the next request is seen; a single one as what it takes."""
        if not self.compress or (wait := self.next_event_ns() - start) > run.end:
            return run
        num_steps = self._steps_until_seen(wait, run)
        if num_steps == 1:
            self._under_way = None
            return run.first_ns
        return run.first(num_steps)

    def finish(self, plan: StepPlan, now: int, price: int | Run) -> tuple[StepPlan | None, int]:
        """Account for a plan that ran from `now` on as long as priced; returns the plan that was made meanwhile, and
        the end.

        Raises:
            ImplausibleStepError: the run is longer than a simulation can last.
        """
        scheduler = self.scheduler
        if isinstance(price, int):
            end, last = now + price, price
            self.observer.on_step(plan, now, price)
        else:
            self._under_way = None
            scheduler.extend(plan, price.num_steps)
            end, last = now + price.end, price.last_ns
            self.observer.on_step(plan, now, price.durations)
        if end > _LONGEST_RUN_NS:
            raise ImplausibleStepError(f"the run would take {_TOO_LONG}")
        self.last_step_ns = last
        planned = None
        if scheduler.plans_ahead:  # the step to come was planned when the last step of this plan began
            started = end - last
            self.take_in(started)
            planned = scheduler.schedule(started)
        outcome = scheduler.commit(plan, end)
        self.observer.on_commit(outcome)
        if self.on_first_token is not None:
            for request in plan.first_tokens(end):
                self.on_first_token(request)
        for request in outcome.finished:
            self.on_finish(request, end)
            request.forget_sequences()
        if self.on_statistics is not None:
            self.on_statistics()
            self._is_empty_ahead = scheduler.plans_ahead and planned is None
        return planned, end

    def _steps_foreseen(self, start: int, first: int) -> int:
        """About how many steps, the first of which takes `first` ns, pass before a request comes to any server; 0 where
        nobody knows."""
        next_ns = self.outlook.next_ns
        return 0 if next_ns == NEVER else self._whole_plans((next_ns - start) // first)

    def _started(self, start: int, run: Run) -> int | Run:
        """Let a run that begins at `start` be under way; returns as `cut`, for as many of its steps as are a time."""
        # Times grow with the contexts. A time beyond the range of int64 has become negative, a sum of times may.
        if not 0 < (last := run.last_ns) <= _LONGEST_STEP_NS or last * run.num_steps > _LONGEST_RUN_NS:
            raise ImplausibleStepError(f"{run.num_steps} steps would take {_TOO_LONG}")
        self._start, self._under_way = start, run
        return self.cut(start, run)

    def _steps_until_seen(self, wait: int, run: Run) -> int:
        """How many steps run before a request is seen that comes `wait` ns after the first of them begins."""
        if wait <= 0 and self.scheduler.plans_ahead:
            return 1  # in time for the step that is planned when this one begins
        return self._whole_plans(run.num_before(wait))

    def _whole_plans(self, step: int) -> int:
        """How many steps it is to the end of the plan of this step, counted from 0, during which a request comes.

        When steps are planned ahead, to the end of the step that was planned when that step began.
        """
        return (step // self._lookahead + 1) * self._lookahead + self.scheduler.plans_ahead
