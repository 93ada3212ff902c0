"""From a policy's draft to the plan that executors and cost models see."""

from __future__ import annotations

from engine.core.kv.block_manager import BlockManager
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
    blocks: BlockManager,
    slots: tuple[int, int, int] | None,
) -> StepPlan:
    """The plan of one step of a lane, which its horizon allows to extend; the numbers as in `StepPlan`.

    `num_running` counts those that are ending too. `slots` are `SlotCounts`; they may be None under paging when all
    that runs decodes: then all blocks that are shared are full.
    """
    decodes, num_decodes = running.decodes, draft.num_decodes
    chunks: list[ChunkWork] | tuple[()] = ()
    if draft.prefills:
        chunks = [ChunkWork(start, num_tokens, is_last) for _, start, num_tokens, is_last in draft.prefills]
    num_copied = sum(transfer.is_within_device for transfer in draft.transfers) if draft.transfers else 0
    work = decodes.work(chunks, num_copied) if num_decodes else StepWork(chunks, 0, 0, 0, num_copied)
    if slots is None:
        slots = (work.num_context_tokens - blocks.pool.num_shares * blocks.block_size, 0, 0)
    num_used_blocks = blocks.num_used_blocks(running.ending)
    fields = (
        lane,
        draft.prefills,
        decodes.sequences.keys() if num_decodes else (),
        num_decodes,
        work,
        list(decodes.fresh) if num_decodes else [],
        draft.admitted,
        draft.parked,
        draft.preempted,
        draft.paused,
        draft.transfers,
        draft.growth,
        horizon,
        1,
        num_running - len(running.ending),
        num_waiting,
        num_used_blocks,
        *slots,
    )
    return make_step_plan(fields)
