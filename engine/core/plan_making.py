"""From a policy's draft to the plan that executors and cost models see."""

from __future__ import annotations

from engine.core.plan import StepDraft, StepPlan, make_step_plan
from engine.core.running_set import RunningSet
from engine.core.work import ChunkWork, StepWork


def make_plan(
    lane: int,
    running: RunningSet,
    draft: StepDraft,
    horizon: int,
    num_running: int,
    num_waiting: int,
    num_used_blocks: int,
    num_saved_blocks: int,
) -> StepPlan:
    """The plan of one step of a lane, which its horizon allows to extend; the numbers as in `StepPlan`."""
    decodes, num_decodes = running.decodes, draft.num_decodes
    chunks: list[ChunkWork] | tuple[()] = ()
    if draft.prefills:
        chunks = [ChunkWork(start, num_tokens, is_last) for _, start, num_tokens, is_last in draft.prefills]
    num_copied = sum(transfer.is_within_device for transfer in draft.transfers) if draft.transfers else 0
    fields = (
        lane,
        draft.prefills,
        decodes.sequences.keys() if num_decodes else (),
        num_decodes,
        decodes.work(chunks, num_copied) if num_decodes else StepWork(chunks, 0, 0, 0, num_copied),
        list(decodes.fresh) if num_decodes else [],
        draft.admitted,
        draft.parked,
        draft.preempted,
        draft.paused,
        draft.transfers,
        draft.growth,
        horizon,
        1,
        num_running,
        num_waiting,
        num_used_blocks,
        num_saved_blocks,
    )
    return make_step_plan(fields)
