"""Request-level batching: a batch is admitted when the one before it is done, the baseline of continuous batching."""

from __future__ import annotations

from engine.core.plan import StepDraft
from engine.core.policy import BasePolicy, QueueView
from engine.core.preemption import Preemption
from engine.core.step_planner import StepPlanner
from engine.core.waiting_queue import QueueOrder


class Static(BasePolicy):
    """Admits only when nothing runs; then the prompts of the batch go first.

    Args:
        max_queue_delay: how long the first in the queue may be held back while fewer than a full batch wait, in the
            scheduler's unit of time; 0 starts with whoever is there.
    """

    def __init__(self, order: QueueOrder, preemption: Preemption, max_queue_delay: int = 0) -> None:
        super().__init__(order, preemption)
        self._max_queue_delay = max_queue_delay
        self._is_filling = False  # the batch does not decode yet

    def admits(self, view: QueueView) -> bool:
        return not view.num_running and view.has_seat and view.head_fits

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        if not planner.running.sequences:
            self._is_filling = self._is_due(planner, draft)
        budget = planner.continue_prefills(draft, planner.max_num_batched_tokens)
        if self._is_filling and not draft.is_starved:
            planner.admit(draft, budget, cut="first")
        if not draft.prefills:
            self._is_filling = False
            planner.decode(draft)

    def _is_due(self, planner: StepPlanner, draft: StepDraft) -> bool:
        """Whether a batch starts now: it is full, or its first request has waited long enough."""
        waiting = planner.waiting
        if not waiting:
            return False
        if len(waiting) < planner.limits.max_num_seqs:
            start = min(sequence.request.arrival_time for sequence in waiting) + self._max_queue_delay
            if draft.now < start:
                draft.wait_until = start
                return False
        return True


POLICY = Static
