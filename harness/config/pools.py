"""The pools of a fleet, each as the configuration of one of its servers."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import ValidationError

from harness.config.devices import device_named
from harness.config.explaining import explain
from harness.config.run import RunConfig
from harness.config.schema.fleet import AlikeFleet, DisaggregatedFleet, PoolConfig, RouterConfig
from harness.errors import ConfigError
from simulator.fleets.handover import Role

_SAME = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "expert_parallel", "quantization",
    "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "num_blocks", "max_model_len",
    "kv_cache_memory_bytes",
)  # fmt: skip


class Pool(NamedTuple):
    """`config.replicas` servers with the same `role`, each as `config` describes it."""

    role: Role
    config: RunConfig


def pools_of(config: RunConfig) -> list[Pool]:
    """The pools, servers for prompts before those for decodes.

    Raises:
        ConfigError: a key of a pool does not fit the run.
    """
    fleet = config.fleet
    if isinstance(fleet, AlikeFleet):
        return [Pool("serve", config)]
    names = ("prefill", "decode") if isinstance(fleet, DisaggregatedFleet) else map(str, range(len(fleet.pools)))
    found = []
    for name, pool in zip(names, fleet.pools, strict=True):
        key = f"fleet.{name}" if isinstance(fleet, DisaggregatedFleet) else f"fleet.pools.{name}"
        try:
            own = _config_of(pool, config)
            if pool.role == "decode":
                own = own.model_copy(update={"router": RouterConfig(**dict(fleet.decode_router))})
            found.append(Pool(pool.role, own))
        except ValidationError as error:
            raise ConfigError(f"{key}.{explain(error)}") from None
        except ConfigError as error:
            raise ConfigError(f"{key}.{error}") from None
    for role, own in found:
        if role != "serve" and (obstacle := _obstacle(role, own)):
            raise ConfigError(f"fleet: a server for {role} {obstacle}")
    if config.is_apart and len(formats := {own.kv_cache_dtype for _, own in found}) > 1:
        raise ConfigError(f"fleet: KV caches of {' and '.join(sorted(formats))}: what is handed over has one format")
    return sorted(found, key=lambda pool: pool.role == "decode")


def _config_of(pool: PoolConfig, config: RunConfig) -> RunConfig:
    update: dict[str, Any] = {name: value for name in _SAME if (value := getattr(pool, name)) is not None}
    if pool.device is not None:
        update["device"] = device_named(pool.device)
    if pool.engine:
        if "kind" in pool.engine:
            raise ConfigError("engine.kind: is that of the run")
        update["engine"] = {**config.engine.model_dump(), **pool.engine}
    if pool.scheduler:
        update["scheduler"] = {**config.scheduler.model_dump(), **pool.scheduler}
    if pool.tiers:
        update["tiers"] = _merged(config.tiers.model_dump(), pool.tiers)
    return RunConfig(**{**dict(config), "fleet": AlikeFleet(), "replicas": pool.replicas, **update})


def _obstacle(role: Role, config: RunConfig) -> str | None:
    """Why a server cannot hand KV over, or take it; None where it can."""
    scheduler = config.scheduler
    found = {
        "cannot be a pipeline; use pipeline_parallel_size=1": config.pipeline_parallel_size > 1,
        "needs allocator=paged": config.allocator.kind != "paged",
        "needs scheduler.enable_chunked_prefill=true: a prompt that was computed elsewhere is a cut one": (
            not scheduler.enable_chunked_prefill or scheduler.max_padding is not None or scheduler.policy == "static"
        ),
        "has no tiers behind it; use tiers=none": role == "decode" and config.tiers.is_on,
    }
    return next((text for text, stands in found.items() if stands), None)


def _merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Nested groups of keys with some of them changed."""
    both = {key: _merged(values[key], new) for key, new in changes.items() if isinstance(new, dict) and key in values}
    return {**values, **changes, **both}
