"""Cost models that a function of the user's own makes."""

from __future__ import annotations

from harness.config import CustomCost
from harness.config.targets import errors_of, find
from harness.errors import ConfigError
from simulator.costs.cost import CostModel
from simulator.hardware import Device, ModelShape

_KEY = "cost.target"


def custom_cost(cost: CustomCost, model: ModelShape, device: Device, tensor_parallel_size: int) -> CostModel:
    """What the function returns for a model, a device and a number of ranks.

    Raises:
        ConfigError: the function fails, is named by a stored configuration only, or returns no cost model.
    """
    function = find(_KEY, cost.target)
    with errors_of(_KEY, cost.target):
        made: CostModel = function(
            model=model, device=device, tensor_parallel_size=tensor_parallel_size, **cost.options
        )
    for name in ("step_ns", "decode_ns"):
        if not callable(getattr(made, name, None)):
            raise ConfigError(f"{_KEY}={cost.target!r}: what it returns has no method {name}")
    return made
