"""Flags of `vllm serve` that make a server several, a pipeline, or one side of a hand-over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from harness.config.command_lines.model_overrides import json_object
from harness.errors import ConfigError

TRANSFER = "--kv-transfer-config"
CONNECTORS: Mapping[str, bool] = {"": False, "NixlConnector": False, "P2pNcclConnector": True}
"""Of servers that hand KV over, and "" for others: whether it is sent layer by layer."""
OFFLOADING = "OffloadingConnector"
"""Keeps KV in the host's memory; beside one that hands KV over, both are in a MultiConnector."""
_STORES = ("LMCacheConnectorV1", "LMCacheMPConnector", "MooncakeStoreConnector")
_RANKS, _STAGES, _EXPERTS = "--data-parallel-size", "--pipeline-parallel-size", "--enable-expert-parallel"
_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def servers(
    values: Mapping[str, str],
    number: Callable[[str, str], float],
    has_experts: Callable[[], bool | None],
    notes: list[str],
) -> dict[str, Any]:
    """Keys of ours for these flags; what a reader must know is added to `notes`.

    Args:
        number: reads the value of a flag, given the name of its key.
        has_experts: tells whether the model has experts, None where that is not known; asked only if it matters.

    Raises:
        ConfigError: a flag changes what is served in a way that is not simulated.
    """
    made: dict[str, Any] = {}
    if (stages := int(number("pipeline_parallel_size", values.get(_STAGES, "1")))) > 1:
        made |= {"pipeline_parallel_size": stages, "scheduler.async_scheduling": False}
        notes.append(f"{_STAGES}: the steps of a lane are not planned ahead, with scheduler.async_scheduling=false")
    ranks, shares_out = int(number("data_parallel_size", values.get(_RANKS, "1"))), values.get(_EXPERTS) == "true"
    if ranks > 1:
        made |= _ranks(ranks, has_experts(), shares_out=shares_out)
        notes.append(f"{_RANKS}: each rank is a server of its own, behind vLLM's balancer")
    elif shares_out:
        made["expert_parallel"] = True
    side = side_of(values)
    made |= side.tiers
    if connector := side.connector:
        both = f"fleet=disaggregated{' fleet.kv_transfer=by_layers' * CONNECTORS[connector]}"
        notes.append(f"{TRANSFER}: one server that serves whole requests; {both} has both sides")
    return made


def _ranks(ranks: int, has_experts: bool | None, *, shares_out: bool) -> dict[str, Any]:
    """Keys of ours for data-parallel ranks: servers of their own or, if they share out experts, that step together."""
    made = {"router": "vllm_balancer"}
    if has_experts is False:
        return {**made, "replicas": ranks}
    if not shares_out:
        raise ConfigError(
            f"{_RANKS} {ranks}: ranks that share the experts' matrices are not simulated; add {_EXPERTS}, or "
            "leave it out to go on"
        )
    return {**made, "data_parallel_size": ranks, "expert_parallel": True}


class Side(NamedTuple):
    """What `--kv-transfer-config` says of a server.

    Attributes:
        connector: by which it hands KV over, "" without one.
        role: "serve" without a connector, "" where it may be both sides.
        tiers: keys of ours for the memory behind its GPUs.
    """

    connector: str = ""
    role: str = "serve"
    tiers: Mapping[str, Any] = {}


def side_of(values: Mapping[str, str]) -> Side:
    """The side of a hand-over that a server is.

    Raises:
        ConfigError: KV moves in a way that is not simulated.
    """
    if TRANSFER not in values:
        return Side()
    config = json_object(TRANSFER, values[TRANSFER])
    parts, tiers = [config], dict[str, Any]()
    if config.get("kv_connector") == "MultiConnector":
        listed = _more(config).get("connectors")
        parts = [part for part in listed if isinstance(part, dict)] if isinstance(listed, list) else []
    movers = [part for part in parts if part.get("kv_connector") != OFFLOADING]
    for part in parts:
        if part.get("kv_connector") == OFFLOADING:
            tiers = {"tiers.host.gib": _gibibytes(_more(part).get("cpu_bytes_to_use")), "tiers.offload": True}
    if not movers and tiers:
        return Side(tiers=tiers)
    names = [str(part.get("kv_connector"))[:40] for part in movers]
    if len(names) != 1 or not names[0] or names[0] not in CONNECTORS:
        text = " beside ".join(map(repr, names)) or "'MultiConnector' of none"
        raise ConfigError(
            f"{TRANSFER}: kv_connector {text} is not simulated, and it changes what is served; {_advice(names)}"
        )
    role = movers[0].get("kv_role", config.get("kv_role"))
    return Side(names[0], _ROLES.get(str(role), ""), tiers)


def _more(config: Mapping[str, Any]) -> Mapping[str, Any]:
    more = config.get("kv_connector_extra_config")
    return more if isinstance(more, dict) else {}


def _gibibytes(size: object) -> float:
    """GiB of host memory for `size` bytes. Raises ConfigError where it is no size."""
    if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
        raise ConfigError(f"{TRANSFER}: {OFFLOADING} needs cpu_bytes_to_use, its size in bytes")
    return size / (1 << 30)


def _advice(names: list[str]) -> str:
    if any(name in _STORES for name in names):
        return "tiers=shared has a store of all servers, tiers=host_disk a server's own memory: leave it out and choose"
    return "leave it out to go on"
