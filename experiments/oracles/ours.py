"""Runs a case through the scheduling core of this repository."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.core.decodes.interface import Decodes
from engine.core.decodes.ragged import RaggedDecodes
from engine.core.decodes.unforeseen import UnforeseenDecodes
from engine.core.decodes.uniform import UniformDecodes
from engine.core.flight import Verified
from engine.core.offloading.jobs import Orders
from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions
from engine.core.sequence import Request as CoreRequest
from engine.core.sequence import Sequence
from experiments.oracles.cases import STOP_TOKEN, Case, Request
from experiments.oracles.steps import Step
from experiments.oracles.theirs.offloading import TransferSteps


class Place(NamedTuple):
    """How far a decode is before a step.

    Attributes:
        length: tokens that it knows.
        most: that it may know: with steps planned ahead, drafts are still under way when this step is planned.
        num_drafts: drafts that the step verifies.
    """

    length: int
    most: int
    num_drafts: int


Course = list[Place]
"""The places of a decode before each of its next steps, and after them."""


@dataclass
class _Flight:
    """A plan that is not committed.

    Attributes:
        courses: of its decoding sequences.
        last_step: the record of its last step.
        end: number of the step after that.
        num_generated: steps whose tokens its decodes have been given.
    """

    plan: StepPlan
    courses: dict[Sequence, Course]
    last_step: Step
    end: int
    num_generated: int = 0


class OurEngine:
    """Our scheduler with a model that answers what the case says.

    With asynchronous scheduling a plan is made before the one before it is committed.

    Args:
        horizons: run as many decode steps at once as a plan and the next event allow, and tell the scheduler what
            drafts will bring.
    """

    def __init__(
        self, case: Case, scheduler_options: SchedulerOptions, *, horizons: bool, offload: OffloadOptions | None = None
    ) -> None:
        options = case.options
        self.steps: list[Step] = []
        self._case = case
        self._horizons = horizons
        self._over: set[int] = set()  # requests that were aborted or met a stop
        self._finished: set[int] = set()
        self._in_flight: _Flight | None = None
        self._transfers = TransferSteps(case)
        self._gave_way_only = False  # the last step, which is empty
        self._orders: tuple[Orders, bool] | None = None  # of the plan that is under way
        self._most: dict[Sequence, int] = {}  # with steps planned ahead, what decodes may know before their next step
        self._padding: dict[Sequence, int] = {}  # of their last chunk
        self._scheduler: Scheduler = make_scheduler(
            scheduler_options,
            num_blocks=options.num_blocks,
            block_size=options.block_size,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
            make_decodes=self._make_decodes,
            num_host_blocks=options.num_host_blocks * options.chunk_blocks,
            offload=offload,
        )

    @property
    def is_idle(self) -> bool:
        connector = self._scheduler.blocks.connector
        if connector is not None and not connector.is_idle or self._orders is not None:
            return False
        return not self._scheduler.unfinished and self._in_flight is None

    def add(self, request: Request) -> None:
        self._scheduler.add(
            CoreRequest(
                request.request_id,
                len(request.prompt),
                len(request.outputs),
                arrival_time=request.arrival,
                token_ids=list(request.prompt),
                priority=request.priority,
            )
        )

    def abort(self, request_id: int) -> None:
        if any(request.request_id == request_id for request in self._scheduler.unfinished):
            self._reveal(self._in_flight)
            self._scheduler.abort(request_id)
            self._over.add(request_id)

    def step(self, most: int) -> None:
        before = self._in_flight
        self._reveal(before)
        num_unreported = len(self._scheduler.preempted_meanwhile)
        plan = self._scheduler.schedule(len(self.steps))
        self._gave_way_only = plan is None and len(self._scheduler.preempted_meanwhile) > num_unreported
        first = len(self.steps)
        flight = None if plan is None else self._start(plan, most)
        if plan is None:
            self.steps.append(Step({}, [], set()))
        if before is not None:
            self._commit(before)
        if flight is not None and (num_steps := len(self.steps) - first) > 1:
            flight.plan = self._scheduler.extend(flight.plan, num_steps)
        self.steps[first].preempted -= self._finished
        if self._scheduler.plans_ahead:
            self._transfer(self.steps[first])
        self._record_state(first, flight)
        self._in_flight = flight
        if flight is not None and not self._scheduler.plans_ahead:
            self._commit(flight)
            self._in_flight = None
        if not self._scheduler.plans_ahead:
            self._transfer(self.steps[first])
        self._scheduler.check_integrity()

    def _transfer(self, step: Step) -> None:
        connector = self._scheduler.blocks.connector
        if connector is None:
            return
        assert self._scheduler.storing is not None
        orders = self._scheduler.storing.take_orders()
        step.transfers += [(job.sequence.request_id, job.is_store, tuple(job.places)) for job in orders.jobs]
        due: tuple[Orders, bool] | None = orders, not self._gave_way_only
        if self._scheduler.plans_ahead:
            is_idle = connector.is_idle and not (self._scheduler.unfinished or step.computed or orders.ended)
            due, self._orders = self._orders, None if is_idle else due
        if due is None:
            return
        orders, counts = due
        for job in orders.jobs:
            self._transfers.add(job.number, job.sequence.request_id, is_store=job.is_store)
        self._transfers.keep(connector.jobs.under_way)
        self._scheduler.storing.report(self._transfers.pass_step(orders.flushed, counts=counts), orders.ended)

    def _start(self, plan: StepPlan, most: int) -> _Flight:
        """Decide how many steps a plan runs, and append them."""
        decodes, num_steps = list(plan.decodes), 1
        if self._horizons:
            num_steps = min(most, plan.horizon, *map(self._steps_until_stop, decodes))
        courses = {sequence: self._course(sequence, num_steps) for sequence in decodes}
        self._most |= {sequence: course[-1].most for sequence, course in courses.items()}
        for ahead in range(num_steps):
            self.steps.append(self._step(plan, courses, ahead))
        return _Flight(plan, courses, self.steps[-1], len(self.steps))

    def _commit(self, flight: _Flight) -> None:
        self._reveal(flight)
        gains = {sequence: course[1].length - course[0].length for sequence, course in flight.courses.items()}
        stopped = self._generate(flight, 1)
        self._over |= {sequence.request_id for sequence in stopped}
        verified = Verified(0, gains) if gains and self._case.options.num_speculative_tokens else None
        outcome = self._scheduler.commit(flight.plan, flight.end, stopped, None if self._horizons else verified)
        flight.last_step.finished = {request.request_id for request in outcome.finished}
        self._finished |= flight.last_step.finished

    def _reveal(self, flight: _Flight | None) -> None:
        """Let the scheduler see the tokens of all steps of a plan but the last, which is running."""
        if flight is not None and flight.plan.num_steps - 1 > flight.num_generated:
            self._generate(flight, flight.plan.num_steps - 1)

    def _record_state(self, first: int, flight: _Flight | None) -> None:
        """Note the counts after planning in the steps from `first` on, with the blocks that each of them adds."""
        scheduler = self._scheduler
        later = [growth for growth in flight.plan.growth if growth.ahead] if flight else []
        num_used = scheduler.blocks.num_used_blocks() - sum(len(growth.blocks) for growth in later)
        for ahead, step in enumerate(self.steps[first:]):
            step.num_running, step.num_waiting = scheduler.num_running, scheduler.num_waiting
            num_used += sum(len(growth.blocks) for growth in later if growth.ahead == ahead)
            step.num_used_blocks = num_used

    def _generate(self, flight: _Flight, num_steps: int) -> dict[Sequence, int]:
        """Append the tokens of the next `num_steps` steps of a plan; returns those who met a stop, and how many tokens
        they generated past it."""
        flight.num_generated += num_steps
        stopped = {}
        for sequence in [*flight.courses, *(chunk.sequence for chunk in flight.plan.prefills if chunk.is_last)]:
            if sequence.request_id in self._over:
                continue
            tokens = sequence.token_ids
            assert tokens is not None
            done = len(tokens) - sequence.request.num_prompt_tokens
            num_new = 1
            if sequence in flight.courses:
                num_new = flight.courses[sequence][flight.num_generated].length - len(tokens)
            new = self._outputs(sequence)[done : done + num_new]
            if STOP_TOKEN in new:
                stopped[sequence] = len(new) - 1 - new.index(STOP_TOKEN)
                del new[new.index(STOP_TOKEN) + 1 :]
            tokens += new
        return stopped

    def _steps_until_stop(self, sequence: Sequence) -> int:
        """Steps after which a decoding sequence stops, which the scheduler does not know; at least 1.

        With drafts the last of them is planned on its own, as the scheduler has it where it does not know what they
        bring.
        """
        outputs, known = self._outputs(sequence), sequence.num_output_tokens
        if STOP_TOKEN in outputs[:known]:
            return 1
        if STOP_TOKEN not in outputs[known:]:
            return len(outputs)
        stop = sequence.num_tokens + outputs.index(STOP_TOKEN) + 1 - known
        num_steps = sum(place.length < stop for place in self._course(sequence, stop - sequence.num_tokens))
        return max(1, num_steps - (self._case.options.num_speculative_tokens > 0))

    def _step(self, plan: StepPlan, courses: dict[Sequence, Course], ahead: int) -> Step:
        """The decode step `ahead` of a plan, or its only step; it must not have been counted yet."""
        places = {sequence.request_id: course[ahead] for sequence, course in courses.items()}
        computed = {request_id: (place.most - 1, 1 + place.num_drafts) for request_id, place in places.items()}
        for chunk, work in zip(plan.prefills, plan.work.chunks, strict=True):
            computed[chunk.sequence.request_id] = (chunk.start, work.num_tokens)
            self._padding[chunk.sequence] = work.num_tokens - chunk.num_tokens
        if ahead:
            return Step(computed, [], set())
        admitted = [sequence.request_id for sequence in plan.admitted]
        return Step(computed, admitted, {sequence.request_id for sequence in plan.preempted})

    # -- the model --------------------------------------------------------------------------------------------------

    def _make_decodes(self, block_size: int, longest: int) -> Decodes:
        if not (num_drafts := self._case.options.num_speculative_tokens):
            return UniformDecodes(block_size)
        plans_ahead = self._case.options.async_scheduling
        if self._horizons or plans_ahead:
            return RaggedDecodes(block_size, longest, num_drafts, self._trajectory, plans_ahead=plans_ahead)
        return UnforeseenDecodes(block_size, longest, num_drafts)

    def _trajectory(self, sequence: Sequence) -> NDArray[np.int64]:
        self._most[sequence] = sequence.num_tokens + self._padding.pop(sequence, 0)
        lengths = [place.length for place in self._course(sequence, sequence.end_length - sequence.num_tokens)]
        return np.array(lengths) - lengths[0]

    def _course(self, sequence: Sequence, num_steps: int) -> Course:
        options, request = self._case.options, self._case.requests[sequence.request_id]
        length, course = sequence.num_tokens, list[Place]()
        is_ahead = options.async_scheduling and options.num_speculative_tokens > 0
        most = self._most[sequence] if is_ahead else length
        for _ in range(num_steps + 1):
            num_drafts = max(0, min(options.num_speculative_tokens, options.max_model_len - 1 - most))
            course.append(Place(length, most, num_drafts))
            gained = min(sequence.end_length, length + self._case.num_gained(request, length, num_drafts))
            most = length + 1 + num_drafts if is_ahead else gained
            length = gained
        return course

    def _outputs(self, sequence: Sequence) -> list[int]:
        return self._case.requests[sequence.request_id].outputs
