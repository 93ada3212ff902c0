"""Flags of `vllm serve` that make a server several, a pipeline, or one side of a hand-over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from harness.errors import ConfigError

_RANKS, _STAGES, _TRANSFER = "--data-parallel-size", "--pipeline-parallel-size", "--kv-transfer-config"
_EXPERTS = "--enable-expert-parallel"
_BOTH_SIDES = {
    "NixlConnector": "fleet=disaggregated",
    "P2pNcclConnector": "fleet=disaggregated fleet.kv_transfer=by_layers",
}


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
    if _TRANSFER in values:
        notes.append(_one_side(values[_TRANSFER]))
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


def _one_side(text: str) -> str:
    """The note on a server that hands KV over; raises ConfigError for other ways to move it."""
    try:
        connector = json.loads(text).get("kv_connector")
    except (ValueError, AttributeError, RecursionError):
        raise ConfigError(f"{_TRANSFER}: no JSON object") from None
    if connector not in _BOTH_SIDES:
        raise ConfigError(
            f"{_TRANSFER}: kv_connector {str(connector)[:40]!r} is not simulated, and it changes what is "
            "served; leave it out to go on"
        )
    return f"{_TRANSFER}: one server that serves whole requests; {_BOTH_SIDES[connector]} has both sides"
