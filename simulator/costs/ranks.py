"""A step of ranks with data-parallel attention that share out the experts.

Each rank computes all but the experts for its own tokens (`RankCost`). In each layer with experts the ranks gather the
tokens of all, each computes its experts for them, and the sums are scattered back (`SharedExperts`): what these take is
the same for all ranks, and depends on the tokens of all together. As vLLM's `allgather_reducescatter` has it, each of
the two takes latency + (ranks-1)/ranks·tokens·hidden_size·dtype_bytes / link bandwidth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.core.work import StepWork
from simulator.costs.roofline import RooflineCost
from simulator.models.hardware import Device
from simulator.models.model import Model


class RankCost:
    """Cost model of all but the experts, for the tokens of one rank."""

    def __init__(self, whole: RooflineCost) -> None:
        self._whole = whole

    def step_ns(self, work: StepWork) -> int:
        return max(1, round(self._whole.step_ns(work) - self._whole.experts_ns(work.num_tokens)))

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        return np.array([self.step_ns(work.after(step)) for step in range(num_steps)])


class SharedExperts:
    """Tells ns of the experts of all layers, with what the ranks exchange for them, given the tokens of all ranks."""

    def __init__(self, whole: RooflineCost, model: Model, device: Device, num_ranks: int) -> None:
        self._whole = whole
        self._num_ranks = num_ranks
        self._exchanges = 2 * model.num_expert_layers
        self._latency_ns = device.link_latency_s * 1e9
        share = (num_ranks - 1) / num_ranks
        self._token_ns = share * model.hidden_size * model.dtype_bytes / device.link_bandwidth * 1e9

    def __call__(self, num_tokens: int) -> int:
        exchanged = self._exchanges * (self._latency_ns + num_tokens * self._token_ns)
        return round(self._whole.experts_ns(num_tokens, self._num_ranks) + exchanged)
