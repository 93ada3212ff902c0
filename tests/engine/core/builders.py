"""Schedulers to try by hand: made with few blocks, and run to the end, by default with a step per plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request, Sequence

LIMITS: dict[str, Any] = {"num_blocks": 100, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
"""What a scheduler has that is not told otherwise; `others` are what `make_scheduler` takes besides."""
OTHERS = (
    "max_model_len", "num_host_blocks", "offload", "transfer_block_us", "num_lanes", "make_decodes", "state_blocks",
    "cached_size",
)  # fmt: skip


def make(policy: str = "mixed", **given: Any) -> Scheduler:
    """A scheduler with `LIMITS`, no watermark and the default rules; `given` are limits and scheduler options."""
    limits = {name: given.pop(name) for name in (*LIMITS, *OTHERS) if name in given}
    options: dict[str, Any] = {"policy": policy, "watermark": 0.0, **given}
    return make_scheduler(SchedulerOptions(**options), **LIMITS | limits)


def bare_sequence(request_id: int, num_prompt_tokens: int, max_tokens: int = 1, **others: Any) -> Sequence:
    """The sequence of a request, for what takes sequences and not requests."""
    return Request(request_id, num_prompt_tokens, max_tokens, **others).sequences[0]


def sequences(scheduler: Scheduler) -> dict[int, Sequence]:
    """The first sequence of every request, by the request's id."""
    return {request.request_id: request.sequences[0] for request in scheduler.unfinished}


def generate(plan: StepPlan, token: int = 7) -> None:
    """Append what the plan's steps generate to the sequences that know their tokens."""
    for sequence in receivers(plan):
        if sequence.token_ids is not None:
            sequence.token_ids += [token] * plan.num_steps


def receivers(plan: StepPlan) -> list[Sequence]:
    """The sequences that the plan gives tokens."""
    return [*[chunk.sequence for chunk in plan.prefills if chunk.is_last], *plan.decodes]


def run(scheduler: Scheduler, *, groups: bool = False, stops: Mapping[int, int] | None = None) -> Iterator[StepPlan]:
    """Execute to the end and yield each plan before it is committed; time counts steps.

    A plan is one step, or with `groups` as many as its horizon allows. A scheduler that plans ahead plans each step
    when the one before it begins. `stops` says after how many output tokens a request meets a stop condition.
    """
    now, plan = 0, scheduler.schedule(0)
    while plan:
        if groups and plan.horizon > 1:
            plan = scheduler.extend(plan, plan.horizon)
        known = {sequence: sequence.num_output_tokens for sequence in receivers(plan)}
        yield plan
        generate(plan)
        now += plan.num_steps
        ahead = scheduler.schedule(now - 1) if scheduler.plans_ahead else None
        scheduler.commit(plan, now, _stopped(known, plan.num_steps, stops or {}))
        scheduler.check_integrity()
        plan = ahead or scheduler.schedule(now)


def _stopped(known: Mapping[Sequence, int], num_steps: int, stops: Mapping[int, int]) -> dict[Sequence, int]:
    """Who stops in a plan, and how many tokens past it come, given the output tokens before the plan."""
    ends = {s: (count + num_steps, stops.get(s.request_id, 0)) for s, count in known.items()}
    return {s: end - stop for s, (end, stop) in ends.items() if known[s] < stop <= end}


def step(scheduler: Scheduler, now: int = 0) -> StepPlan:
    """Plan, execute and commit one step."""
    plan = scheduler.schedule(now)
    assert plan is not None
    generate(plan)
    scheduler.commit(plan, now + 1)
    scheduler.check_integrity()
    return plan


def chunks(plan: StepPlan) -> list[tuple[int, int, int]]:
    return [(chunk.sequence.request_id, chunk.start, chunk.num_tokens) for chunk in plan.prefills]


def ids(sequences: list[Sequence]) -> list[int]:
    return [sequence.request_id for sequence in sequences]
