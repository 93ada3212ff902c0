"""A scheduler to try by hand: made with few blocks, and run to the end with a step per plan."""

from __future__ import annotations

from collections.abc import Iterator

from engine.core.block_manager import BlockManager
from engine.core.plan import StepPlan
from engine.core.policy import POLICIES
from engine.core.scheduler import Scheduler


def make(
    policy: str = "mixed",
    *,
    num_blocks: int = 100,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int | None = None,
    watermark: float = 0.0,
) -> Scheduler:
    return Scheduler(
        BlockManager(num_blocks, block_size),
        POLICIES[policy](),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        watermark=watermark,
    )


def run(scheduler: Scheduler) -> Iterator[StepPlan]:
    """Execute to the end, one step per plan; time counts steps. Plans are yielded before they are committed."""
    now = 0
    while plan := scheduler.schedule(now):
        yield plan
        now += 1
        for sequence in (*[c.sequence for c in plan.prefills if c.is_last], *plan.decodes):
            if sequence.token_ids is not None:
                sequence.token_ids.append(7)
        scheduler.commit(plan, now)
        scheduler.check_integrity()


def chunks(plan: StepPlan) -> list[tuple[object, int, int]]:
    return [(chunk.sequence.request_id, chunk.start, chunk.num_tokens) for chunk in plan.prefills]
