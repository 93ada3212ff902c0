"""Earliest deadline first: admits the request that must be done soonest."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.admission.waiting_queue import QueueOrder
from engine.core.planning.policy import BasePolicy, nanoseconds
from engine.core.running.preemption import Preemption
from engine.core.sequence import Sequence


@dataclass(frozen=True)
class EarliestDeadlineOptions:
    """Settings of `policy=edf`, which give a deadline to requests whose trace states none.

    Attributes:
        ttft_s: time to the first token that a request is promised.
        tpot_s: time for each further token of its `max_tokens`, so that short answers are due before long ones.
    """

    ttft_s: float = 1.0
    tpot_s: float = 0.05

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            if not 0 <= getattr(self, name) <= 1e6:
                raise ValueError(f"{name}={getattr(self, name):g}: must be >= 0 and <= 1e6")


class EarliestDeadline(BasePolicy):
    """The order is of admission only: a sequence that runs is not interrupted for a more urgent one.

    Deadlines do not move, so no request starves: those that arrive late enough are due later.
    """

    options_type = EarliestDeadlineOptions

    def __init__(self, order: QueueOrder, preemption: Preemption, options: EarliestDeadlineOptions) -> None:
        super().__init__(self._deadline, preemption, options)
        self._ttft, self._tpot = nanoseconds(options.ttft_s), nanoseconds(options.tpot_s)

    def _deadline(self, sequence: Sequence) -> int:
        request = sequence.request
        if request.deadline is not None:
            return request.deadline
        return request.arrival_time + self._ttft + self._tpot * (request.max_tokens - 1)


POLICY = EarliestDeadline
