"""What a measured engine's settings and logs say of its KV pool, and of parallelism that the simulator lacks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import MeasuredRunError
from harness.measured.records import read_text

_LINE = re.compile(r"GPU KV cache size: (\d[\d,]{0,18}) tokens")
_BLOCKS = ("num_gpu_blocks", "num_gpu_blocks_override")
_DEFAULT_BLOCK = 16  # tokens, of vLLM
_DATA, _EXPERTS, _PIPELINE = "data parallelism", "expert parallelism", "pipeline parallelism"
_SIZES = {
    "data_parallel_size": _DATA,
    "dp_size": _DATA,
    "dp": _DATA,
    "pipeline_parallel_size": _PIPELINE,
    "pp_size": _PIPELINE,
    "pp": _PIPELINE,
    "expert_parallel_size": _EXPERTS,
    "ep_size": _EXPERTS,
    "ep": _EXPERTS,
    "decode_context_parallel_size": "context parallelism",
    "prefill_context_parallel_size": "context parallelism",
}
_SWITCHES = {"enable_expert_parallel": _EXPERTS, "enable_dp_attention": _DATA}


def logged_pool(settings: Mapping[str, Any], logs: Sequence[Path]) -> int | None:
    """Tokens that the KV pool of the run held; None if neither `settings` nor one of the `logs` tells.

    Raises:
        MeasuredRunError: logs tell different pools, or a log cannot be read.
    """
    block = settings.get("block_size") or _DEFAULT_BLOCK
    for name in _BLOCKS:
        if type(settings.get(name)) is int and type(block) is int and settings[name] > 0:
            return int(settings[name]) * block
    found = {}
    for path in sorted(logs):
        sizes = [int(size.replace(",", "")) for size in _LINE.findall(read_text(path))]
        if sizes:
            found[path] = min(sizes)  # a line per rank: the smallest pool serves all
    if len(set(found.values())) > 1:
        told = ", ".join(f"{path.name} {size:,}" for path, size in found.items())
        raise MeasuredRunError(
            f"{next(iter(found)).parent}: logs of different KV pools ({told} tokens); leave one there"
        )
    return next(iter(found.values()), None)


def check_parallelism(path: Path, settings: Mapping[str, Any]) -> None:
    """Raises MeasuredRunError where settings of an engine name ranks that do not share every request and layer.

    Names are those of vLLM's arguments and of common abbreviations, with `_` or `-`.
    """
    for key, value in settings.items():
        name = str(key).lower().lstrip("-").replace("-", "_")
        if name in _SIZES and _count(value) > 1:
            what = _SIZES[name]
        elif name in _SWITCHES and _is_on(value):
            what = _SWITCHES[name]
        else:
            continue
        raise MeasuredRunError(
            f"{path}: measured with {what} ({key}={value}); the simulator has tensor parallelism only, where all ranks "
            "share every request and layer"
        )


def _count(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 1.0


def _is_on(value: Any) -> bool:
    return value is True or str(value).lower() in ("true", "1", "yes")
