"""The scheduling core, and the real engine around it, whose public names are imported on first use, as is torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from engine.versions import check_versions

if TYPE_CHECKING:
    from engine.api.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from engine.api.calls import EngineClosedError, RequestAbortedError
    from engine.api.llm import LLM
    from engine.api.outputs import CompletionOutput, RequestOutput
    from engine.core.sequence import RequestRefusedError
    from engine.engine_config import EngineConfig
    from engine.json_file import ModelError
    from engine.sampling_params import SamplingParams

_HOMES = {
    "BeamSearchOutput": "engine.api.beam_search",
    "BeamSearchParams": "engine.api.beam_search",
    "BeamSearchSequence": "engine.api.beam_search",
    "CompletionOutput": "engine.api.outputs",
    "EngineClosedError": "engine.api.calls",
    "EngineConfig": "engine.engine_config",
    "LLM": "engine.api.llm",
    "ModelError": "engine.json_file",
    "RequestAbortedError": "engine.api.calls",
    "RequestOutput": "engine.api.outputs",
    "RequestRefusedError": "engine.core.sequence",
    "SamplingParams": "engine.sampling_params",
}

__all__ = [
    "LLM", "BeamSearchOutput", "BeamSearchParams", "BeamSearchSequence", "CompletionOutput", "EngineClosedError",
    "EngineConfig", "ModelError", "RequestAbortedError", "RequestOutput", "RequestRefusedError", "SamplingParams",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    if name == "LLM":
        check_versions()
    return getattr(importlib.import_module(_HOMES[name]), name)
