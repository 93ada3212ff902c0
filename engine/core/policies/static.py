"""Request-level batching: a batch is admitted when the one before it is done, the baseline of continuous batching."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.admission.need import Need
from engine.core.admission.waiting_queue import QueueOrder
from engine.core.plan import StepDraft
from engine.core.planning.asking import WAIT, AdmissionState, Admit, Wait
from engine.core.planning.policy import BasePolicy, nanoseconds
from engine.core.planning.step_planner import StepPlanner
from engine.core.running.preemption import Preemption


@dataclass(frozen=True)
class StaticOptions:
    """Settings of `policy=static`.

    Attributes:
        max_queue_delay_s: how long the first in the queue may be held back while fewer than a full batch wait; 0 starts
            a batch with the requests that wait.
        padded: batches keep their shape, as in engines without ragged batches: finished sequences stay in the batch as
            padding rows and keep their blocks until the batch ends, and the prompts of a step are padded to the
            longest. With false a batch shrinks as its sequences end.
    """

    max_queue_delay_s: float = 0.0
    padded: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.max_queue_delay_s <= 1e6:
            raise ValueError(f"max_queue_delay_s={self.max_queue_delay_s:g}: must be >= 0 and <= 1e6")


class Static(BasePolicy):
    """Admits only while no sequence of the batch has begun to decode; prompts go first, then the decodes of all.

    A padded batch takes its shape from `engine.core.running.padding`.
    """

    options_type = StaticOptions

    def __init__(self, order: QueueOrder, preemption: Preemption, options: StaticOptions) -> None:
        super().__init__(order, preemption, options)
        self.pads = options.padded
        self._max_queue_delay = nanoseconds(options.max_queue_delay_s)

    def admit(self, need: Need, state: AdmissionState) -> Admit | Wait:
        if state.has_decoded:
            return WAIT
        if not state.running and len(state.waiting) < state.free_seats:
            start = min(sequence.request.arrival_time for sequence in state.waiting) + self._max_queue_delay
            if state.now < start:
                return Wait(until=start)
        return super().admit(need, state)

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        budget = planner.continue_prefills(draft, planner.max_num_batched_tokens)
        if not draft.is_starved:
            planner.admit(draft, budget, cut="first")
        if not draft.prefills and not planner.running.decodes.sequences.keys() <= planner.running.padding.keys():
            planner.decode(draft)


POLICY = Static
