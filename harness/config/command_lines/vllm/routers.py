"""The line of the router before several servers of vLLM."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from harness.errors import ConfigError

# `--policy` of vllm-router 0.1; cache_aware with its own thresholds, which --cache-threshold and others change.
_VLLM_ROUTER: Mapping[str, dict[str, Any]] = {
    "cache_aware": {
        "router": "prefix_affinity", "router.options.min_match": 0.3, "router.options.max_ahead": 64,
        "router.options.max_ratio": 1.5,
    },
    "consistent_hash": {"router": "session_affinity"},
    "power_of_two": {"router": "power_of_two"},
    "random": {"router": "random"},
    "round_robin": {"router": "round_robin"},
}  # fmt: skip
_THRESHOLDS = {
    "--cache-threshold": "router.options.min_match",
    "--balance-abs-threshold": "router.options.max_ahead",
    "--balance-rel-threshold": "router.options.max_ratio",
}
# `--router-mode` of Dynamo's frontend.
_DYNAMO: Mapping[str, dict[str, Any]] = {
    "kv": {"router": "weighted_score", "router.options.precise": True},
    "random": {"router": "random"},
    "round-robin": {"router": "round_robin"},
}


def router_keys(line: str) -> dict[str, Any] | None:
    """Keys of ours for a line that starts a router; None for other lines.

    Raises:
        ConfigError: it asks for a rule that is not simulated.
    """
    if "router" not in line and "dynamo.frontend" not in line:
        return None
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None  # who reads it as a server says what is wrong
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if "dynamo.frontend" in words:
        return dict(_chosen(words, "--router-mode", "round-robin", _DYNAMO))
    if "vllm-router" not in words[:2] and "vllm_router.launch_router" not in words[:3]:
        return None
    made = dict(_chosen(words, "--policy", "cache_aware", _VLLM_ROUTER))
    for flag, text in pairwise(words):
        if flag in _THRESHOLDS and made["router"] == "prefix_affinity":
            made[_THRESHOLDS[flag]] = _number(flag, text)
    return made


def _chosen(words: list[str], flag: str, default: str, rules: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    name = next((text for word, text in pairwise(words) if word == flag), default)
    if name not in rules:
        raise ConfigError(f"{flag} {name[:40]}: not simulated; choose one of {', '.join(rules)}")
    return rules[name]


def _number(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{flag} {text[:40]}: must be a number") from None
    return int(value) if value.is_integer() and flag == "--balance-abs-threshold" else value
