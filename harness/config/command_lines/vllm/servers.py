"""Flags of `vllm serve` that make a server several, a pipeline, or one side of a hand-over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from harness.errors import ConfigError

TRANSFER = "--kv-transfer-config"
OFFLOADING = "OffloadingConnector"
CONNECTORS: Mapping[str, bool] = {"": False, "NixlConnector": False, "P2pNcclConnector": True}
"""Of servers that hand KV over, and "" for others: whether it is sent layer by layer."""
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


def side_of(values: Mapping[str, str]) -> tuple[str, str]:
    """The connector by which a server hands KV over to others, "" without one, and its role: "serve" without one, ""
    where it may be both.

    Raises:
        ConfigError: KV moves in a way that is not simulated.
    """
    if TRANSFER not in values:
        return "", "serve"
    try:
        config = json.loads(values[TRANSFER])
        connector, role = config.get("kv_connector"), config.get("kv_role")
    except (ValueError, AttributeError, RecursionError):
        raise ConfigError(f"{TRANSFER}: no JSON object") from None
    if connector == OFFLOADING:
        return "", "serve"
    if not connector or connector not in CONNECTORS:
        raise ConfigError(
            f"{TRANSFER}: kv_connector {str(connector)[:40]!r} is not simulated, and it changes what is "
            "served; leave it out to go on"
        )
    return connector, _ROLES.get(str(role), "")
