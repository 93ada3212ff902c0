"""Cost models that a function of the user's own makes."""

from __future__ import annotations

from harness.config import CustomCost
from harness.config.targets import errors_of, find
from harness.errors import ConfigError
from simulator.costs.cost import CostModel
from simulator.device import Device
from simulator.models.model import Model
from simulator.system import MakeCost

_KEY = "cost.target"


def maker_of(cost: CustomCost) -> MakeCost:
    """What makes the cost model of a model on so many ranks of a device, by the user's function.

    It raises ConfigError where the function fails, is named by a stored configuration only, or returns no cost model.
    """

    def make(model: Model, device: Device, tensor_parallel_size: int) -> CostModel:
        function = find(_KEY, cost.target)
        with errors_of(_KEY, cost.target):
            made: CostModel = function(
                model=model, device=device, tensor_parallel_size=tensor_parallel_size, **cost.options
            )
        for name in ("step_ns", "decode_ns"):
            if not callable(getattr(made, name, None)):
                raise ConfigError(f"{_KEY}={cost.target!r}: what it returns has no method {name}")
        return made

    return make
