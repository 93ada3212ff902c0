"""A step of ranks with data-parallel attention that share out the experts.

Each rank computes all but the experts for its own tokens. In each layer with experts the ranks gather the tokens of
all, each computes its experts for them, and the sums are scattered back (`SharedExperts`): what these take is the same
for all ranks, and depends on the tokens of all together.

vLLM's default, `allgather_reducescatter`, is an all-gather and a reduce-scatter of hidden states. A profile has their
measured times and those of the experts; by the roofline each of the two takes
latency + (ranks-1)/ranks·tokens·hidden_size·dtype_bytes / link bandwidth. Where a CUDA graph serves the step of every
rank, all ranks are padded to the graph of the largest (`coordinate_batch_across_dp` of vLLM's dp_utils.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.core.work import StepWork
from simulator.costs.cost import step_time_ns
from simulator.costs.curves.profile_curves import curve_of
from simulator.costs.profiled import ProfiledCost
from simulator.costs.roofline import RooflineCost
from simulator.device import Device
from simulator.models.model import Model
from simulator.nanoseconds import nearest_ns

Time = Callable[[int], float]
"""ns for a number of tokens."""


class RankCost:
    """Cost model of all but the experts, for the tokens of one rank."""

    def __init__(self, whole: RooflineCost) -> None:
        self._whole = whole

    def step_ns(self, work: StepWork) -> int:
        return step_time_ns(self._whole.step_ns(work) - self._whole.experts_ns(work.num_tokens))

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        return np.array([self.step_ns(work.after(step)) for step in range(num_steps)])


class SharedExperts:
    """Tells ns of the experts of all layers, with what the ranks exchange for them, given the tokens of each rank.

    Args:
        experts: the experts of all layers on a rank, for the tokens of all ranks.
        exchange: what the ranks exchange for them.
        graph_tokens: tokens of the CUDA graph that serves so many; None where none does.
    """

    def __init__(self, experts: Time, exchange: Time, graph_tokens: Callable[[int], int | None]) -> None:
        self._experts = experts
        self._exchange = exchange
        self._graph_tokens = graph_tokens

    def __call__(self, num_tokens: Sequence[int]) -> int:
        padded = self._graph_tokens(max(num_tokens))
        total = sum(num_tokens) if padded is None else len(num_tokens) * padded
        return nearest_ns(self._experts(total) + self._exchange(total))


def by_rates(whole: RooflineCost, model: Model, device: Device) -> SharedExperts:
    """What `model`'s ranks share, by the roofline of the device's rates."""
    ranks, exchanges = model.num_expert_ranks, 2 * model.num_expert_layers
    latency_ns = device.link_latency_s * 1e9
    token_ns = (ranks - 1) / ranks * model.hidden_size * model.dtype_bytes / device.link_bandwidth * 1e9
    return SharedExperts(whole.experts_ns, lambda tokens: exchanges * (latency_ns + tokens * token_ns), lambda _: None)


def by_profile(rank: ProfiledCost, model: Model) -> SharedExperts:
    """What `model`'s ranks share, by the tables `experts` and `exchange` of the profile that prices a rank."""
    layers, token_bytes, factor = model.num_expert_layers, model.hidden_size * model.dtype_bytes, rank.kernel_factor
    tables = {name: rank.profile.rows[name] for name in ("experts", "exchange")}
    of_ranks = {name: table[table["num_ranks"] == model.num_expert_ranks] for name, table in tables.items()}
    experts, exchange = curve_of(of_ranks["experts"], "num_tokens"), curve_of(of_ranks["exchange"], "num_bytes")
    assert experts is not None and exchange is not None
    return SharedExperts(
        lambda tokens: factor * layers * experts(tokens),
        lambda tokens: factor * layers * exchange(tokens * token_bytes),
        rank.graph_tokens,
    )
