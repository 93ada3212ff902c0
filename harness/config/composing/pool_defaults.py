"""Defaults that a server's own device decides, for the pools of a fleet that say which device they have."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from engine.documents import DocumentError, read_yaml
from harness.config.composing import CONF

if TYPE_CHECKING:
    from omegaconf import DictConfig

# In this order: the tokens of a step follow from the seats.
_OF_DEVICE = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")


def fill_pools(values: dict[str, Any], cfg: DictConfig) -> None:
    """Gives pools with a device of their own, in the resolved `values` of `cfg`, what vLLM or SGLang takes there by
    default. What the run or the pool says itself stays."""
    fleet = values.get("fleet") or {}
    for pool in (*(fleet.get("pools") or ()), fleet.get("prefill"), fleet.get("decode")):
        if isinstance(pool, dict) and isinstance(device := pool.get("device"), str):
            _fill(pool, cfg, device)


def _fill(pool: dict[str, Any], cfg: DictConfig, device: str) -> None:
    from omegaconf import OmegaConf

    try:
        rates = read_yaml(CONF / "device" / f"{device}.yaml")
    except DocumentError:
        return  # `pools_of` says that there is no such device
    own = copy.deepcopy(cfg)
    own.device = OmegaConf.merge(own.device, {key: rates[key] for key in ("name", "memory_bytes")})
    for name in (*_OF_DEVICE, "tensor_parallel_size"):
        if pool.get(name) is not None:
            own[name] = pool[name]
    for name in _OF_DEVICE:
        if OmegaConf.is_interpolation(own, name):
            pool[name] = own[name]
