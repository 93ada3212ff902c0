"""From a policy's draft to the plan that executors and cost models see."""

from __future__ import annotations

from engine.core.kv.block_manager import BlockManager
from engine.core.kv.contiguous import ContiguousManager
from engine.core.plan import StepDraft, StepPlan, make_step_plan
from engine.core.running_set import RunningSet
from engine.core.slots import count_slots, num_to_compute
from engine.core.waiting_queue import WaitingQueue
from engine.core.work import ChunkWork, StepWork


def make_plan(
    lane: int,
    lanes: list[RunningSet],
    draft: StepDraft,
    horizon: int,
    num_running: int,
    blocks: BlockManager,
    waiting: WaitingQueue,
) -> StepPlan:
    """The plan of one step of a lane, which its horizon allows to extend; the numbers as in `StepPlan`.

    `num_running` counts those that are ending too.
    """
    running = lanes[lane]
    decodes, num_decodes = running.decodes, draft.num_decodes
    chunks: list[ChunkWork] | tuple[()] = ()
    if draft.prefills:
        chunks = [ChunkWork(start, num_tokens, is_last) for _, start, num_tokens, is_last in draft.prefills]
    num_copied = sum(transfer.is_within_device for transfer in draft.transfers) if draft.transfers else 0
    work = decodes.work(chunks, num_copied) if num_decodes else StepWork(chunks, 0, 0, 0, num_copied)
    ending = running.ending if len(lanes) == 1 else [sequence for each in lanes for sequence in each.ending]
    pool = blocks.pool
    num_used, num_saved, num_external = blocks.num_blocks - pool.num_free, pool.num_extra_references, 0
    if ending:
        num_used, num_saved = blocks.num_used_blocks(ending), blocks.num_saved_blocks(ending)
    has_others = num_decodes + len(chunks) != num_running or waiting.holders or running.landing
    if has_others or isinstance(blocks, ContiguousManager):
        num_tokens, num_reserved, num_external = count_slots(lanes, draft, blocks, waiting)
    else:  # all that runs takes part, so that all blocks which are shared are full
        num_tokens, num_reserved = work.num_context_tokens - num_saved * blocks.block_size, 0
        is_cut = False
        for start, num_chunk_tokens, is_last in chunks:
            num_tokens += start + num_chunk_tokens
            is_cut = is_cut or not is_last
        if is_cut:
            num_reserved = num_to_compute(draft.prefills, blocks.block_size)
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
        len(waiting),
        num_used,
        num_saved,
        num_tokens,
        num_reserved,
        num_external,
    )
    return make_step_plan(fields)
