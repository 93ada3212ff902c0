"""The key whose highest value is searched for, and configurations with other values of a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.config import RunConfig, validated
from harness.config.schema.traffic.reader import nearest
from harness.errors import ConfigError

_UNITS = {
    "arrival.rate": "requests/s",
    "arrival.concurrency": "requests in flight",
    "arrival.time_scale": "times the trace's own speed",
}


def searched_key(config: RunConfig) -> str:
    """The key to raise: `capacity.over`, or the load of the arrival process; or whose lowest value is searched for.

    Raises:
        ConfigError: the arrival process has no load, or `capacity.over` is no key with a number above 0.
    """
    if config.capacity.target_rate is not None:
        if not counts_servers(config.capacity.over or "replicas"):
            raise ConfigError(f"capacity.over={config.capacity.over}: capacity.target_rate asks for over=replicas")
        return config.capacity.over or "replicas"
    arrival = config.arrival.kind
    loads = {"closed_loop": "arrival.concurrency", "trace": "arrival.time_scale", "all_at_once": None}
    key = config.capacity.over or loads.get(arrival, "arrival.rate")
    if key is None:
        raise ConfigError(
            f"arrival={arrival}: has no load to raise; choose another arrival, or give capacity.over=<key>"
        )
    load_of(config, key)
    return key


def load_of(config: RunConfig, key: str) -> float:
    """The load that the key's value makes; raises ConfigError where it is no number above 0."""
    value = _find(config.model_dump(mode="json"), key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigError(f"capacity.over={key}: is {_show(value)} here; must be a key with a number above 0")
    return 1 / value if _is_inverse(key) else float(value)


def with_load(config: RunConfig, key: str, load: float) -> RunConfig:
    """`config` with the key at the value that makes this load, rounded down where the key holds whole numbers.

    Raises:
        ConfigError: the value is out of the key's range, or contradicts another key.
    """
    is_whole = isinstance(_find(config.model_dump(mode="json"), key), int)
    value = 1 / load if _is_inverse(key) else load
    return with_values(config, {key: max(1, int(value + 1e-9)) if is_whole else value})


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """`config` with other values of dotted keys; raises ConfigError as a command line with these values would."""
    document = config.model_dump(mode="json")
    for key, value in values.items():
        _find(document, key)
        *path, last = key.split(".")
        group = document
        for part in path:
            group = group[part]
        group[last] = value
    return validated(document)


def unit_of(key: str) -> str:
    """The unit of loads, for tables; the key itself where it has no unit of its own."""
    return "servers" if counts_servers(key) else _UNITS.get(key, key)


def counts_servers(key: str) -> bool:
    """Whether the lowest value of the key is searched for, and not the highest."""
    return key.rpartition(".")[-1] == "replicas"


def _is_inverse(key: str) -> bool:
    """Whether a lower value is a higher load."""
    return key == "arrival.time_scale"


def _find(document: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(document, dict) or part not in document:
            known = list(document) if isinstance(document, dict) else []
            raise ConfigError(f"{key}: unknown key{nearest(part, known)}")
        document = document[part]
    return document


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "a group"
    return "null" if value is None else repr(value)
