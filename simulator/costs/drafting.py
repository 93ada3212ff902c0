"""Step times with a drafter, which runs after the model in every step.

A drafter drafts one token after the other. Its first pass computes what the model computes in the step: prompt chunks,
and of each decode all tokens that the model verifies. Each further pass computes one token of every sequence that
decodes next. A pass takes what a cost model of the drafter's own sizes says, or the same time for any work.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.core.work import StepWork
from simulator.costs.cost import CostModel


class DraftingCost:
    """The cost model `model` with drafts of `num_drafts` tokens.

    Args:
        drafter: prices the drafter's passes; None for one that takes `draft_token_ns` only.
        draft_token_ns: added for each draft position, whatever the number of sequences.
    """

    def __init__(self, model: CostModel, num_drafts: int, drafter: CostModel | None, draft_token_ns: int) -> None:
        self.model = model
        self._drafter = drafter
        self._num_later_passes = num_drafts - 1
        self._fixed_ns = num_drafts * draft_token_ns

    def step_ns(self, work: StepWork) -> int:
        total = self.model.step_ns(work)
        ended = [chunk.start + chunk.num_tokens for chunk in work.chunks if chunk.is_last]
        num_drafting = work.num_decodes + len(ended)
        if num_drafting:
            total += self._fixed_ns
        if self._drafter is None:
            return total
        total += self._drafter.step_ns(work)
        if num_drafting and self._num_later_passes:
            contexts = work.num_context_tokens + sum(ended)
            squared = work.num_squared_context_tokens + sum(context**2 for context in ended)
            first = StepWork((), num_drafting, contexts, squared).after(1)
            total += int(np.sum(self._drafter.decode_ns(first, self._num_later_passes)))
        return total

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        times = np.asarray(self.model.decode_ns(work, num_steps)) + self._fixed_ns
        if self._drafter is None:
            return times
        times += np.asarray(self._drafter.decode_ns(work, num_steps))
        contexts, squared, n = work.contexts(num_steps), work.squared_contexts(num_steps), work.num_decodes
        for k in range(1, self._num_later_passes + 1):  # each context is k tokens longer
            one, two = contexts + k * n, squared + k * (2 * contexts + k * n)
            later = StepWork((), n, int(one[0]), int(two[0]), later_contexts=one, later_squared_contexts=two)
            times += np.asarray(self._drafter.decode_ns(later, num_steps))
        return times
