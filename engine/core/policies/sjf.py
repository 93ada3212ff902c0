"""Shortest job first: admits the request with the fewest output tokens left, known or predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.core.admission.waiting_queue import QueueOrder
from engine.core.hashing import chain_hash
from engine.core.planning.policy import BasePolicy
from engine.core.running.preemption import Preemption
from engine.core.sequence import Sequence


@dataclass(frozen=True)
class ShortestFirstOptions:
    """Settings of `policy=sjf`.

    Attributes:
        relative_error: of the predicted output lengths; one standard deviation is a factor of 1 + this, 0 predicts each
            exactly.
        ageing_tokens_per_s: tokens by which a request counts as shorter for each second that it arrived earlier, so
            that nobody starves; 0 for none.
    """

    relative_error: float = 0.0
    ageing_tokens_per_s: float = 0.0

    def __post_init__(self) -> None:
        for name, most in (("relative_error", 10), ("ageing_tokens_per_s", 1e12)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name}={getattr(self, name):g}: must be >= 0 and <= {most:g}")


class ShortestFirst(BasePolicy):
    """Takes `max_tokens` for the output length that a perfect predictor would tell, as it is in the replay of a trace.

    The order is of admission only: a sequence that runs is not interrupted for a shorter one.
    """

    options_type = ShortestFirstOptions

    def __init__(self, order: QueueOrder, preemption: Preemption, options: ShortestFirstOptions) -> None:
        super().__init__(self._length, preemption, options)
        self._factor = 1 + options.relative_error
        self._tokens_per_ns = options.ageing_tokens_per_s * 1e-9

    def _length(self, sequence: Sequence) -> float:
        """Predicted tokens left; waiting makes all shorter at the same rate, so only arrivals need to be compared."""
        request = sequence.request
        predicted = request.max_tokens * self._factor ** _normal(request.request_id)
        return predicted - sequence.num_output_tokens + request.arrival_time * self._tokens_per_ns


def _normal(number: int) -> float:
    """A standard normal draw that belongs to `number`, by the method of Box and Muller."""
    bits = chain_hash(0, [number & 0x7FFFFFFF])
    radius = math.sqrt(-2 * math.log1p(-(bits >> 32) / 2**32))
    return radius * math.cos(2 * math.pi * (bits & 0xFFFFFFFF) / 2**32)


POLICY = ShortestFirst
