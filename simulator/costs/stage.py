"""The share of a step that a stage of a pipeline takes.

The time of a step is affine in the number of layers: what each layer takes, and the rest (embedding, LM head, sampler,
the host), which is priced in the last stage. Both follow from the times of a model with all layers and with fewer:

    layer = (time of all layers - time of fewer layers) / layers between them        rest = time - layers · layer

A stage hands the hidden state and the residual of each token to the next one, over the link between two devices:
latency + 2·tokens·hidden_size·dtype_bytes / bandwidth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.core.work import StepWork
from simulator.costs.cost import CostModel, step_time_ns
from simulator.device import Device
from simulator.models.model import Model


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
    """Cost model of a stage with `num_layers` layers; of the last one with the rest of a step."""

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
