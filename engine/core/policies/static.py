"""Request-level batching: a batch is admitted when the one before it is done, the baseline of continuous batching."""

from __future__ import annotations

from engine.core.plan import StepDraft
from engine.core.policy import BasePolicy, QueueView
from engine.core.preemption import Preemption
from engine.core.step_planner import StepPlanner
from engine.core.waiting_queue import QueueOrder


class Static(BasePolicy):
    """Admits only while no sequence of the batch has begun to decode; prompts go first, then the decodes of all.

    Args:
        max_queue_delay: how long the first in the queue may be held back while fewer than a full batch wait, in the
            scheduler's unit of time; 0 starts with whoever is there.
    """

    def __init__(self, order: QueueOrder, preemption: Preemption, max_queue_delay: int = 0) -> None:
        super().__init__(order, preemption)
        self._max_queue_delay = max_queue_delay

    def admits(self, view: QueueView) -> bool:
        return not view.num_running and view.head_fits

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        running = planner.running
        decodes = running.decodes
        is_filling = len(decodes.fresh) == len(decodes.sequences) and not running.ending
        is_due = bool(running.sequences) or self._is_due(planner, draft)
        budget = planner.continue_prefills(draft, planner.max_num_batched_tokens)
        if is_filling and is_due and not draft.is_starved:
            planner.admit(draft, budget, cut="first")
        if not draft.prefills:
            planner.decode(draft)

    def _is_due(self, planner: StepPlanner, draft: StepDraft) -> bool:
        """Whether a batch may start now: it is full, or its first request has waited long enough."""
        waiting = planner.waiting
        if 0 < len(waiting) < planner.limits.max_num_seqs:
            start = min(sequence.request.arrival_time for sequence in waiting) + self._max_queue_delay
            if draft.now < start:
                draft.wait_until = start
                return False
        return True


POLICY = Static
