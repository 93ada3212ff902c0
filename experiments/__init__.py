"""Experiments, each of which answers one question. Run them from the root of the repository as `python -m <module>`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from harness.config import RunConfig, parse
from harness.results.stored.environment import environment

ROOT = Path(__file__).resolve().parents[1]
# Relative to the repository, as all paths that are committed.
RESULTS = Path("experiments/results")
FIDELITY = Path("docs/fidelity")


def composed(*overrides: str) -> RunConfig:
    """The configuration that `run.py` would get from these overrides."""
    with initialize_config_dir(config_dir=str(ROOT / "conf"), version_base=None):
        return parse(compose("config", overrides=list(overrides)))


def provenance(module: str) -> dict[str, Any]:
    """The command of this process, which runs `module`, and its environment."""
    return {"command": shlex.join(["python", "-m", module, *sys.argv[1:]]), "environment": environment()}
