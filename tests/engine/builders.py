"""Schedulers to try by hand: made with few blocks, and run to the end with a step per plan. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.scheduler_options import SchedulerOptions, make_scheduler
from engine.core.sequence import Request, Sequence

LIMITS: dict[str, Any] = {"num_blocks": 100, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
"""What a scheduler has that is not told otherwise; `others` are what `make_scheduler` takes besides."""
OTHERS = ("max_model_len", "num_host_blocks", "num_lanes", "make_decodes")


def make(policy: str = "mixed", **given: Any) -> Scheduler:
    """A scheduler with `LIMITS`, no watermark and the default rules; `given` are limits and scheduler options."""
    limits = {name: given.pop(name) for name in (*LIMITS, *OTHERS) if name in given}
    return make_scheduler(SchedulerOptions(**{"policy": policy, "watermark": 0.0} | given), **LIMITS | limits)


def bare_sequence(request_id: int, num_prompt_tokens: int, max_tokens: int = 1, **others: Any) -> Sequence:
    """The sequence of a request, for what takes sequences and not requests."""
    return Request(request_id, num_prompt_tokens, max_tokens, **others).sequences[0]


def sequences(scheduler: Scheduler) -> dict[int, Sequence]:
    """The first sequence of every request, by the request's id."""
    return {request.request_id: request.sequences[0] for request in scheduler.unfinished}


def generate(plan: StepPlan, token: int = 7) -> None:
    """Append what the plan's steps generate to the sequences that know their tokens."""
    for sequence in (*[chunk.sequence for chunk in plan.prefills if chunk.is_last], *plan.decodes):
        if sequence.token_ids is not None:
            sequence.token_ids += [token] * plan.num_steps


def run(scheduler: Scheduler, *, groups: bool = False) -> Iterator[StepPlan]:
    """Execute to the end and yield each plan before it is committed; time counts steps.

    A plan is one step, or with `groups` as many as its horizon allows.
    """
    now = 0
    while plan := scheduler.schedule(now):
        if groups and plan.horizon > 1:
            plan = scheduler.extend(plan, plan.horizon)
        yield plan
        now += plan.num_steps
        generate(plan)
        scheduler.commit(plan, now)
        scheduler.check_integrity()


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
