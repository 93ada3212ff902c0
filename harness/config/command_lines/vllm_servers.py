"""Flags of `vllm serve` that make a server several, a pipeline, or one side of a hand-over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from harness.config.command_lines.vllm_line import KEY
from harness.errors import ConfigError

_RANKS, _STAGES, _TRANSFER = "--data-parallel-size", "--pipeline-parallel-size", "--kv-transfer-config"


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
    if (ranks := int(number("data_parallel_size", values.get(_RANKS, "1")))) > 1:
        if has_experts() is not False:
            raise ConfigError(
                f"{KEY}: {_RANKS} {ranks}: ranks that share experts step together, which is not simulated; leave it "
                "out to go on"
            )
        made |= {"replicas": ranks, "router": "vllm_balancer"}
        notes.append(f"{_RANKS}: each rank is a server of its own, behind vLLM's balancer")
    if _TRANSFER in values:
        notes.append(_one_side(values[_TRANSFER]))
    return made


def _one_side(text: str) -> str:
    """The note on a server that hands KV over; raises ConfigError for other ways to move it."""
    try:
        connector = json.loads(text).get("kv_connector")
    except (ValueError, AttributeError, RecursionError):
        raise ConfigError(f"{KEY}: {_TRANSFER}: no JSON object") from None
    if connector != "NixlConnector":
        raise ConfigError(
            f"{KEY}: {_TRANSFER}: kv_connector {str(connector)[:40]!r} is not simulated, and it changes what is "
            "served; leave it out to go on"
        )
    return f"{_TRANSFER}: one server that serves whole requests; fleet=disaggregated has both sides"
