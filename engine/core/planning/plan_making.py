"""From a policy's draft to the plan that executors and cost models see."""

from __future__ import annotations

from engine.core.admission.waiting_queue import WaitingQueue
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.reserved.contiguous import ContiguousManager
from engine.core.plan import StepDraft, StepPlan
from engine.core.planning.asking import Admission
from engine.core.planning.horizon import decode_horizon
from engine.core.running.running_set import RunningSet
from engine.core.running.slots import count_slots, num_to_compute
from engine.core.work import ChunkWork, StepWork


class PlanMaker:
    """Makes the plans of a scheduler whose lanes are entered by these admissions; the prompts of a step are padded to
    the longest if it `pads`."""

    def __init__(self, admissions: list[Admission], blocks: BlockManager, waiting: WaitingQueue, *, pads: bool) -> None:
        self._admissions = admissions
        self._lanes = [admission.running for admission in admissions]
        self._blocks = blocks
        self._waiting = waiting
        self._pool = blocks.pool
        self._block_size = blocks.block_size
        self._reserves = isinstance(blocks, ContiguousManager)
        self._pads = pads

    def make(self, lane: int, draft: StepDraft) -> StepPlan:
        """The plan of one step of a lane, which its horizon allows to extend; the numbers as in `StepPlan`."""
        lanes, blocks, waiting, pool = self._lanes, self._blocks, self._waiting, self._pool
        running, prefills, num_decodes = lanes[lane], draft.prefills, draft.num_decodes
        decodes, is_alone = running.decodes, len(lanes) == 1
        # Those that are ending are counted too.
        num_running = len(running.sequences) if is_alone else sum(len(each.sequences) for each in lanes)
        chunks = [ChunkWork(each.start, each.num_tokens, each.is_last) for each in prefills] if prefills else ()
        horizon, num_late, num_padding = 1, 0, 0
        if num_decodes and decodes.late:
            num_late = len(decodes.late)
            num_padding = sum([1 + decodes.num_drafts_of(sequence) for sequence in decodes.late])
        if draft.padded:
            num_drafts = decodes.tokens_per_decode - 1
            chunks = [
                ChunkWork(work.start, 1 + num_drafts, work.is_last) if chunk.sequence in draft.padded else work
                for chunk, work in zip(prefills, chunks, strict=True)
            ]
            num_padding += len(draft.padded) * num_drafts
        num_copied = sum([each[0] == each[2] for each in draft.transfers]) if draft.transfers else 0  # on the device
        if num_decodes:
            work, fresh = decodes.work(chunks, num_copied), list(decodes.fresh) if decodes.fresh else []
            # A victim may end with drafts that are under way, and leave the queue then.
            may_leave = draft.preempted and running.lag and decodes.tokens_per_decode > 1
            if is_alone and not (prefills or draft.transfers or draft.paused or may_leave or draft.is_single):
                horizon = decode_horizon(self._admissions[lane], draft.now, pads=self._pads)
        else:
            work, fresh = StepWork(chunks, 0, 0, 0, num_copied), []
        num_used, num_saved, num_external = blocks.num_blocks - pool.num_free, pool.num_extra_references, 0
        ending = running.ending if is_alone else [sequence for each in lanes for sequence in each.ending]
        num_shared = pool.num_shared
        if ending:
            num_used, num_saved, num_shared = blocks.count_blocks(ending)
        if num_saved and num_decodes > 1:
            # Of what sharing saves, prompts and those that wait have their part.
            num_holders = max(num_decodes, num_running - len(ending))
            work.num_saved_tokens = num_saved * self._block_size * (num_decodes - 1) // (num_holders - 1)
            work.num_shared_tokens = num_shared * self._block_size
        has_others = num_decodes + len(chunks) + len(ending) != num_running or waiting.holders or running.held
        if has_others or self._reserves or self._pads:
            num_tokens, num_reserved, num_external = count_slots(lanes, running, draft, blocks, waiting)
        else:  # all that goes on takes part, so that all blocks which are shared are full
            num_tokens, num_reserved = work.num_context_tokens - num_late - num_saved * self._block_size, 0
            for chunk in prefills:
                end = chunk.start + chunk.num_tokens
                num_tokens += end
                if not chunk.is_last:
                    num_reserved += num_to_compute(chunk.sequence, end, self._block_size)
        plan = StepPlan(
            lane, prefills, decodes.sequences.keys() if num_decodes else (), num_decodes, work, fresh, draft.admitted,
            draft.parked, draft.preempted, draft.paused, draft.transfers, draft.growth, horizon,
            num_running - len(running.ending), len(waiting), num_used, num_saved, num_tokens, num_reserved,
            num_external, num_late, num_padding,
        )  # fmt: skip
        return self._padded(running, plan) if self._pads else plan

    def _padded(self, running: RunningSet, plan: StepPlan) -> StepPlan:
        """The plan with its prompts padded to the longest chunk, and its padding counted."""
        num_rows = sum(row in running.decodes.sequences for row in running.padding) if plan.num_decodes else 0
        longest = max((chunk.num_tokens for chunk in plan.prefills), default=0)
        num_padded = sum(longest - chunk.num_tokens for chunk in plan.prefills)
        plan.work.chunks = [ChunkWork(chunk.start, longest, chunk.is_last) for chunk in plan.work.chunks]
        plan.num_running -= sum(len(lane.padding) for lane in self._lanes)
        plan.num_padding_seqs = num_rows
        plan.num_padding_tokens = num_rows + num_padded
        return plan
