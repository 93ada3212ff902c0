"""The text of a command line, and of a comment at its end on what the tool has no flag for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from harness.config.run import RunConfig
from harness.config.schema.allocator import PagedAllocator


def line_of(words: Sequence[object], comments: Sequence[str]) -> str:
    line = shlex.join(map(str, words))
    return f"{line}  # {'; '.join(comments)}" if comments else line


def without_flag(
    tool: str,
    config: RunConfig,
    fixed: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    has_offloading: bool = False,
) -> list[str]:
    """The comment that names the settings of a server, as key=value, that no flag of `tool` gives it.

    Args:
        fixed: the tool's scheduler, in what no flag changes.
        given: more settings that it has no flag for.
        has_offloading: whether flags give the server its memory on the host.
    """
    scheduler = config.scheduler
    missing = {f"scheduler.{key}": getattr(scheduler, key) for key in fixed if getattr(scheduler, key) != fixed[key]}
    missing |= given
    if config.weight_format not in (config.model.quantization, "fp8"):
        missing["quantization"] = config.weight_format
    if config.engine.kv_cache_dtype not in ("auto", "fp8"):
        missing["engine.kv_cache_dtype"] = config.engine.kv_cache_dtype
    if not isinstance(config.allocator, PagedAllocator):
        missing["allocator.kind"] = config.allocator.kind
    if config.tiers.host.gib and not has_offloading:
        missing["tiers.host.gib"] = config.tiers.host.gib
    if config.tiers.store.gib:
        missing["tiers.store.gib"] = config.tiers.store.gib
    texts = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in missing.items()]
    return [f"not in {tool}: {', '.join(texts)}"] if missing else []


def replicas_comment(config: RunConfig) -> list[str]:
    several = config.replicas > 1
    return [f"{config.replicas} such servers behind a router: {config.router.rule}"] if several else []
