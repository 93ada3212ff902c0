"""The parts of a configuration as the simulator and the scheduling core take them."""

from __future__ import annotations

from engine.core.kv.reservation import Contiguous
from engine.engine_config import KVDtype
from harness.config import ContiguousAllocator, DeviceConfig, ModelConfig, RunConfig
from harness.config.devices import device_named
from simulator.models.decoder import decoder
from simulator.models.hardware import Device
from simulator.models.model import Model
from simulator.models.weight_formats import QUANTIZATIONS


def model_shape(model: ModelConfig, weight_format: str, kv_cache_dtype: KVDtype) -> Model:
    """A model of the configuration, with weights of a format, as the simulator sees it."""
    own = weight_format == model.quantization
    fields = model.model_dump(exclude={"kv_cache_dtype", "ignored_keys"}) | {
        "part_formats": {part: QUANTIZATIONS[name] for part, name in model.part_formats.items() if own},
        "blocks": tuple(block.made for block in model.blocks),
        "dtype": "fp32" if model.dtype == "float32" else "bf16",
        "dtype_bytes": model.dtype_bytes,
        "kv_dtype": kv_cache_dtype,
        "quantization": QUANTIZATIONS[weight_format],
    }
    return decoder(**fields)


def contiguous_rule(config: RunConfig) -> Contiguous | None:
    """How contiguous reservations are made, as the core takes it; None where blocks are paged."""
    return config.allocator.rule() if isinstance(config.allocator, ContiguousAllocator) else None


def device_rates(device: DeviceConfig) -> Device:
    """A device of the configuration as the simulator sees it."""
    rates = device.model_dump(exclude={"price_per_gpu_hour", "tdp_w", "kernels_like"})
    like = None if device.kernels_like is None else device_rates(device_named(device.kernels_like))
    return Device(**rates, kernels_like=like)
