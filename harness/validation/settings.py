"""Differences between the settings of a measured run and those of its simulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.results.stored.environment import cpu_with_threads
from simulator.calibration import same_setting
from simulator.models.weight_formats import QUANTIZATIONS
from simulator.profile.profile import Profile

if TYPE_CHECKING:
    from harness.config import RunConfig

_TOP_LEVEL = ("max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size")


def different_settings(settings: Mapping[str, Any], config: RunConfig) -> list[str]:
    """One line for each of a measured run's `settings` with another value in `config`; unrecorded ones do not count."""
    simulated = {
        "model": config.model.name,
        "dtype": config.model.dtype,
        "quantization": config.weight_format,
        "kv_cache_dtype": config.engine.kv_cache_dtype,
        "max_model_len": config.max_model_len or config.model.max_position_embeddings,
        **{name: getattr(config, name) for name in _TOP_LEVEL},
    }
    recorded = {"model": settings.get("model_id"), **settings}
    if recorded.get("dtype") == "auto":  # the dtype of the checkpoint, which is not recorded
        del recorded["dtype"]
    if recorded.get("quantization") not in QUANTIZATIONS:  # such as compressed-tensors, which has several formats
        recorded["quantization"] = None
    return [
        f"{name}={value} simulated, {recorded[name]} measured"
        for name, value in simulated.items()
        if recorded.get(name) is not None and not same_setting(name, value, recorded[name])
    ]


def different_device(measured_on: str | None, profile: Profile) -> list[str]:
    """A line where a run of our own engine was measured on another device than `profile`, or with other threads."""
    source, profiled_on = profile.meta.source, profile.meta.device
    if source.get("num_threads") and source.get("driver") is None:
        profiled_on = cpu_with_threads(profiled_on, source["num_threads"])
    return [] if measured_on == profiled_on else [f"the profile is of {profiled_on}, the run of {measured_on}"]
