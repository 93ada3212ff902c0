"""Runs a case through the scheduling core of this repository: the only file here that knows its interface."""

from __future__ import annotations

from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.scheduler_options import SchedulerOptions, make_scheduler
from engine.core.sequence import Sequence
from experiments.oracles.cases import STOP_TOKEN, Options, Request
from experiments.oracles.steps import Step


class NotInCoreError(NotImplementedError):
    """The core has no such option yet."""


def as_vllm(options: Options) -> SchedulerOptions:
    """The options with which the core decides as vLLM 0.19 does.

    Raises:
        NotInCoreError: for options of vLLM that the core does not have.
    """
    missing = {
        "--scheduling-policy priority": options.scheduling_policy == "priority",
        "--long-prefill-token-threshold": options.long_prefill_token_threshold > 0,
        "--no-enable-chunked-prefill": not options.enable_chunked_prefill,
        "--no-scheduler-reserve-full-isl": not options.scheduler_reserve_full_isl,
    }
    for name, is_asked_for in missing.items():
        if is_asked_for:
            raise NotInCoreError(name)
    return SchedulerOptions(
        policy="mixed",
        watermark=0.0,
        enable_prefix_caching=options.enable_prefix_caching,
        allocation="chunk",
        eviction="lru",
        victim="last",
        full_hit="recompute_block",
        queue="fcfs",
        async_scheduling=options.async_scheduling,
    )


def as_nano_vllm(options: Options) -> SchedulerOptions:
    """The options with which the core decides as nano-vllm does."""
    return SchedulerOptions(
        policy="prefill_first",
        watermark=0.0,
        eviction="lru",
        victim="last",
        full_hit="recompute_block",
        queue="fcfs",
        enable_prefix_caching=options.enable_prefix_caching,
    )


class OurEngine:
    """Our scheduler with a model that answers what the case says.

    Args:
        horizons: run as many decode steps at once as a plan and the next event allow.
    """

    def __init__(self, options: Options, scheduler_options: SchedulerOptions, *, horizons: bool) -> None:
        self.steps: list[Step] = []
        self._horizons = horizons
        self._outputs: dict[int, list[int]] = {}
        self._sequences: dict[int, Sequence] = {}
        self._scheduler: Scheduler = make_scheduler(
            scheduler_options,
            num_blocks=options.num_blocks,
            block_size=options.block_size,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
        )

    @property
    def is_idle(self) -> bool:
        return not self._scheduler.unfinished

    def add(self, request: Request) -> None:
        sequence = Sequence(
            request.request_id,
            len(request.prompt),
            len(request.outputs),
            arrival_time=request.request_id,
            token_ids=list(request.prompt),
            priority=request.priority,
        )
        self._outputs[request.request_id] = request.outputs
        self._sequences[request.request_id] = sequence
        self._scheduler.add(sequence)

    def abort(self, request_id: int) -> None:
        sequence = self._sequences[request_id]
        if sequence in self._scheduler.unfinished:
            self._scheduler.abort(request_id)

    def step(self, most: int) -> None:
        plan = self._scheduler.schedule(len(self.steps))
        if plan is None:
            self.steps.append(Step({}, [], set()))
            self._record_state()
            return
        decodes = list(plan.decodes)
        num_steps = min(most, plan.horizon, *map(self._steps_until_stop, decodes)) if self._horizons else 1
        for ahead in range(num_steps):
            self.steps.append(self._step(plan, decodes, ahead))
            self._record_state()
        if num_steps > 1:
            plan = self._scheduler.extend(plan, num_steps)
            for growth in plan.growth:
                for step in self.steps[growth.ahead - num_steps :] if growth.ahead else ():
                    step.num_used_blocks += len(growth.blocks)
        stopped = self._generate(plan, decodes)
        outcome = self._scheduler.commit(plan, len(self.steps), dict.fromkeys(stopped, 0))
        self.steps[-1].finished = {sequence.request_id for sequence in outcome.finished}
        self._scheduler.check_integrity()

    def _step(self, plan: StepPlan, decodes: list[Sequence], ahead: int) -> Step:
        computed = {sequence.request_id: (sequence.num_tokens - 1 + ahead, 1) for sequence in decodes}
        for chunk in plan.prefills:
            computed[chunk.sequence.request_id] = (chunk.start, chunk.num_tokens)
        if ahead:
            return Step(computed, [], set())
        admitted = [sequence.request_id for sequence in plan.admitted]
        return Step(computed, admitted, {sequence.request_id for sequence in plan.preempted})

    def _record_state(self) -> None:
        """The counts after planning, before the blocks of later steps are taken."""
        scheduler, step = self._scheduler, self.steps[-1]
        step.num_running, step.num_waiting = scheduler.num_running, scheduler.num_waiting
        step.num_used_blocks = scheduler.blocks.num_used_blocks

    def _generate(self, plan: StepPlan, decodes: list[Sequence]) -> list[Sequence]:
        """Append the tokens that the plan yields; returns those who met a stop."""
        yielding = {sequence: plan.num_steps for sequence in decodes}
        yielding |= {chunk.sequence: 1 for chunk in plan.prefills if chunk.is_last}
        stopped = []
        for sequence, count in yielding.items():
            tokens = sequence.token_ids
            assert tokens is not None
            done = len(tokens) - sequence.num_prompt_tokens
            tokens += self._outputs[sequence.request_id][done : done + count]
            if tokens[-1] == STOP_TOKEN:
                stopped.append(sequence)
        return stopped

    def _steps_until_stop(self, sequence: Sequence) -> int:
        rest = self._outputs[sequence.request_id][sequence.num_output_tokens :]
        return rest.index(STOP_TOKEN) + 1 if STOP_TOKEN in rest else len(rest)
