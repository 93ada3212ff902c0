"""What the configured model and device are to the simulator."""

from __future__ import annotations

from harness.config import RunConfig
from simulator.hardware import Device, ModelShape


def model_shape(config: RunConfig) -> ModelShape:
    """The model of a configuration as the simulator sees it."""
    fields = config.model.model_dump() | {
        "dtype": "fp32" if config.model.dtype == "float32" else "bf16",
        "dtype_bytes": config.model.dtype_bytes,
        "kv_dtype_bytes": 1 if config.engine.kv_cache_dtype == "fp8" else None,
    }
    return ModelShape(**fields)


def device_rates(config: RunConfig) -> Device:
    """The device of a configuration as the simulator sees it."""
    return Device(**config.device.model_dump())
