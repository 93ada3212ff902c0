"""Admission and preemption by priority: a more urgent request takes the seats and blocks of less urgent ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from engine.core.admission.need import Need
from engine.core.admission.waiting_queue import QueueOrder
from engine.core.kv.pool import Pool
from engine.core.plan import StepDraft
from engine.core.planning.asking import WAIT_FOR_A_STEP, AdmissionState, Admit, Wait
from engine.core.planning.displacement import make_way
from engine.core.planning.policy import BasePolicy, nanoseconds
from engine.core.planning.step_planner import StepPlanner
from engine.core.running.preemption import Preemption
from engine.core.sequence import Sequence


@dataclass(frozen=True)
class PriorityOptions:
    """Settings of `policy=priority`.

    Attributes:
        ageing_s: seconds of waiting that make up for one level of priority, so that nobody starves; null for none.
    """

    ageing_s: float | None = 60.0

    def __post_init__(self) -> None:
        if self.ageing_s is not None and not 0 <= self.ageing_s <= 1e6:
            raise ValueError(f"ageing_s={self.ageing_s:g}: must be >= 0 and <= 1e6, or null")


class Priority(BasePolicy):
    """Ranks requests by priority, then arrival, or with ageing by `arrival + priority * ageing_s`, the same for ever.

    Who is first of all those that wait and run is never preempted, so there is always progress.
    """

    options_type = PriorityOptions
    chooses_victims = True

    def __init__(self, order: QueueOrder, preemption: Preemption, options: PriorityOptions) -> None:
        super().__init__(self._urgency, preemption._replace(victim=self._last_in_rank), options)
        self._ageing = None if options.ageing_s is None else nanoseconds(options.ageing_s)
        self._settled: tuple[Collection[Sequence] | None, Sequence | None, int] = None, None, 0

    def admit(self, need: Need, state: AdmissionState) -> Admit | Wait:
        answer = super().admit(need, state)
        if isinstance(answer, Wait) and self._outranks(need.sequence, state.running):
            return WAIT_FOR_A_STEP  # then others make way for it
        return answer

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        if planner.waiting and self._outranks(planner.waiting.head, planner.running.sequences):
            make_way(planner, draft, self._rank)
        super().compose(planner, draft)

    def _urgency(self, sequence: Sequence) -> int:
        request = sequence.request
        return request.priority if self._ageing is None else request.arrival_time + request.priority * self._ageing

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        return self._urgency(sequence), sequence.request.order

    def _last_in_rank(self, running: Iterable[Sequence], spared: Sequence | None, pool: Pool) -> Sequence:
        return max(running, key=self._rank)

    def _outranks(self, head: Sequence, running: Collection[Sequence]) -> bool:
        """Whether somebody who runs comes after the head of the queue.

        If not, that stays so until the head is admitted, since nobody who comes after it is admitted before.
        """
        if self._settled[0] is running and self._settled[1:] == (head, head.num_preemptions):
            return False
        rank = self._rank(head)
        if any(self._rank(sequence) > rank for sequence in running):
            return True
        self._settled = running, head, head.num_preemptions
        return False


POLICY = Priority
