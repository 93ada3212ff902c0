"""Flags of `vllm serve` that make a server several, a pipeline, or one side of a hand-over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
    if connector := side_of(values)[0]:
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


def connectors_of(values: Mapping[str, str]) -> list[dict[str, Any]]:
    """What moves the KV of a server, by `--kv-transfer-config`: one connector, or those of a MultiConnector.

    Raises:
        ConfigError: no JSON object.
    """
    if TRANSFER not in values:
        return []
    config = json_object(TRANSFER, values[TRANSFER])
    if config.get("kv_connector") != "MultiConnector":
        return [config]
    listed = more_of(config).get("connectors")
    parts = [part for part in listed if isinstance(part, dict)] if isinstance(listed, list) else []
    role = config.get("kv_role")
    return [{"kv_role": role, **part} for part in parts] or [config]


def more_of(connector: Mapping[str, Any]) -> dict[str, Any]:
    """Its kv_connector_extra_config."""
    more = connector.get("kv_connector_extra_config")
    return dict(more) if isinstance(more, dict) else {}


def side_of(values: Mapping[str, str]) -> tuple[str, str]:
    """The connector by which a server hands KV over to others, "" without one, and its role: "serve" without one, ""
    where it may be both.

    Raises:
        ConfigError: KV moves in a way that is not simulated.
    """
    movers = [each for each in connectors_of(values) if each.get("kv_connector") != OFFLOADING]
    if not movers:
        return "", "serve"
    names = [str(each.get("kv_connector"))[:40] for each in movers]
    if len(names) != 1 or names[0] not in CONNECTORS or not names[0]:
        raise ConfigError(
            f"{TRANSFER}: kv_connector {' beside '.join(map(repr, names))} is not simulated, and it changes what is "
            f"served; {_advice(names)}"
        )
    return names[0], _ROLES.get(str(movers[0].get("kv_role")), "")


def _advice(names: list[str]) -> str:
    if any(name in _STORES for name in names):
        return "tiers=shared has a store of all servers, tiers=host_disk a server's own memory: leave it out and choose"
    return "leave it out to go on"
