"""Checkpoints as `model=hf` reads them, and configurations of command lines of vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.config import ModelConfig, RunConfig
from harness.config.command_lines.vllm.serve_line import overrides
from harness.config.huggingface.configs import resolve_model
from tests.harness.builders import config

MODELS = Path(__file__).parent / "models"  # keys of published files
CHECKPOINTS = Path(__file__).parent / "checkpoints"  # published files
SERVE = "vllm serve Qwen/Qwen3-8B"


def published(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((MODELS / f"{name}.json").read_text())
    return data


def write(folder: Path, data: object) -> Path:
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def read(path: Path, **given: Any) -> dict[str, Any]:
    """The group `model` of a run with `model.config=<path>` and these keys."""
    return ModelConfig(**resolve_model({"config": str(path), "name": None} | given)).model_dump()


def of_line(command: str, *more: str) -> RunConfig:
    """The configuration of a command line of vLLM, and what is given beside it."""
    return config(*overrides(command), *more)
