"""Request-level batching: a batch is admitted when the one before it is done, the baseline of continuous batching."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.plan import StepDraft
from engine.core.policy import BasePolicy, QueueView, nanoseconds
from engine.core.preemption import Preemption
from engine.core.step_planner import StepPlanner
from engine.core.waiting_queue import QueueOrder


@dataclass(frozen=True)
class StaticOptions:
    """Settings of `policy=static`.

    Attributes:
        max_queue_delay_s: how long the first in the queue may be held back while fewer than a full batch wait; 0 starts
            with whoever is there.
        padded: batches keep their shape, as in engines without ragged batches: who has ended is computed on, as
            padding, and keeps its blocks until the batch ends, and the prompts of a step are padded to the longest.
            With false a batch shrinks as its sequences end.
    """

    max_queue_delay_s: float = 0.0
    padded: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.max_queue_delay_s <= 1e6:
            raise ValueError(f"max_queue_delay_s={self.max_queue_delay_s:g}: must be >= 0 and <= 1e6")


class Static(BasePolicy):
    """Admits only while no sequence of the batch has begun to decode; prompts go first, then the decodes of all.

    A padded batch takes its shape from `engine.core.padding`.
    """

    options_type = StaticOptions

    def __init__(self, order: QueueOrder, preemption: Preemption, options: StaticOptions) -> None:
        super().__init__(order, preemption, options)
        self.pads = options.padded
        self._max_queue_delay = nanoseconds(options.max_queue_delay_s)

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
        if not draft.prefills and not decodes.sequences.keys() <= running.padding.keys():
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
