"""What the configured model is to the simulator."""

from __future__ import annotations

from harness.config import RunConfig
from simulator.hardware import ModelShape


def model_shape(config: RunConfig) -> ModelShape:
    """The model of a configuration as the simulator sees it."""
    fields = config.model.model_dump() | {"dtype_bytes": config.model.dtype_bytes}
    return ModelShape(**fields | {"dtype": "fp32" if config.model.dtype == "float32" else "bf16"})
