"""Cost models that are made of others: of a step with a drafter, and of a stage of a pipeline."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.core.work import StepWork
from simulator.costs.cost import CostModel, step_time_ns
from simulator.device import Device
from simulator.models.model import Model


class DraftingCost:
    """The cost model `model` with drafts of `num_drafts` tokens, which a drafter makes after the model in every step.

    A drafter drafts one token after the other. Its first pass computes what the model computes in the step: prompt
    chunks, and of each decode all tokens that the model verifies. Each further pass computes one token of every
    sequence that decodes next. A pass takes what a cost model of the drafter's own sizes says, or the same time for any
    work.

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
        ended = [start + num_tokens for start, num_tokens, is_last in work.chunks if is_last]
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
            total += int(self._drafter.decode_ns(first, self._num_later_passes).sum())
        return total

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        times = self.model.decode_ns(work, num_steps) + self._fixed_ns
        if self._drafter is None:
            return times
        times += self._drafter.decode_ns(work, num_steps)
        contexts, squared, n = work.contexts(num_steps), work.squared_contexts(num_steps), work.num_decodes
        for k in range(1, self._num_later_passes + 1):  # each context is k tokens longer
            one, two = contexts + k * n, squared + k * (2 * contexts + k * n)
            later = StepWork((), n, int(one[0]), int(two[0]), later_contexts=one, later_squared_contexts=two)
            times += self._drafter.decode_ns(later, num_steps)
        return times


class LayerCost(NamedTuple):
    """Cost models of a model with all its layers, and with fewer, of the same kinds in the same shares."""

    whole: CostModel
    part: CostModel
    num_layers: int
    num_part_layers: int

    def of(self, work: StepWork) -> tuple[float, float]:
        """ns of a layer, and of what belongs to none."""
        whole = self.whole.step_ns(work)
        layer = (whole - self.part.step_ns(work)) / (self.num_layers - self.num_part_layers)
        return layer, whole - self.num_layers * layer


class StageCost:
    """The share of a step that a stage of a pipeline with `num_layers` layers takes; of the last one with the rest.

    The time of a step is affine in the number of layers: what each layer takes, and the rest (embedding, LM head,
    sampler, the host), which is priced in the last stage. Both follow from the times of a model with all layers and
    with fewer:

        layer = (time of all layers - time of fewer layers) / layers between them        rest = time - layers · layer

    A stage hands the hidden state and the residual of each token to the next one, over the link between two devices:
    latency + 2·tokens·hidden_size·dtype_bytes / bandwidth.
    """

    def __init__(self, layers: LayerCost, num_layers: int, model: Model, device: Device, *, is_last: bool) -> None:
        self._layers = layers
        self._num_layers = num_layers
        self._is_last = is_last
        self._send_ns = device.link_latency_s * 1e9
        self._send_token_ns = 2 * model.hidden_size * model.dtype_bytes / device.link_bandwidth * 1e9

    def step_ns(self, work: StepWork) -> int:
        layer, rest = self._layers.of(work)
        if not self._is_last:
            rest = self._send_ns + self._send_token_ns * work.num_tokens
        return step_time_ns(self._num_layers * layer + rest)

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        return np.array([self.step_ns(work.after(step)) for step in range(num_steps)])
