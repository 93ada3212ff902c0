"""Parallelism of a measured run that the simulator does not have: such a run is refused, never simulated as another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import MeasuredRunError

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
