"""Fair shares: admits a request of the tenant that was served the least, by the virtual token counter of Sheng et al.
2024, "Fairness in Serving Large Language Models"."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.admission.need import Need
from engine.core.admission.tenant_queue import TenantQueue
from engine.core.admission.waiting_queue import QueueOrder
from engine.core.plan import StepDraft
from engine.core.planning.asking import WAIT_FOR_A_STEP, AdmissionState, Admit, Wait
from engine.core.planning.policy import BasePolicy
from engine.core.planning.step_planner import StepPlanner
from engine.core.running.preemption import Preemption


@dataclass(frozen=True)
class FairOptions:
    """Settings of `policy=fair`.

    Attributes:
        input_weight: what a prompt token counts in the service of its tenant.
        output_weight: what a generated token counts.
    """

    input_weight: int = 1
    output_weight: int = 2

    def __post_init__(self) -> None:
        for name in ("input_weight", "output_weight"):
            if not 0 <= getattr(self, name) <= 10**6:
                raise ValueError(f"{name}={getattr(self, name)}: must be >= 0 and <= 1000000")


class Fair(BasePolicy):
    """The tenant of a request is that of its trace, or else its session.

    Where a seat is free, the pool is full and several tenants wait, the head can change with every token: such steps
    are planned one by one, at a cost per running sequence and per tenant that waits.
    """

    options_type = FairOptions

    def __init__(self, order: QueueOrder, preemption: Preemption, options: FairOptions) -> None:
        super().__init__(order, preemption, options)
        self._queue = TenantQueue(order, options.input_weight, options.output_weight)

    def make_queue(self) -> TenantQueue:
        return self._queue

    def admit(self, need: Need, state: AdmissionState) -> Admit | Wait:
        answer = super().admit(need, state)
        if isinstance(answer, Wait) and state.free_seats > 0 and len(self._queue.heaps) > 1:
            return WAIT_FOR_A_STEP  # then another tenant may have the head
        return answer

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        has_seat = planner.running.num_seats < planner.limits.max_num_seqs
        if self._queue.has_newcomers or (has_seat and len(self._queue.heaps) > 1):
            self._queue.turn()
        super().compose(planner, draft)


POLICY = Fair
