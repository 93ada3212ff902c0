"""Experiments, each of which answers one question. Run them from the root of the repository as `python -m <module>`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from harness.config import RunConfig, parse
from harness.config.composing.composer import compose, drop_hydra
from harness.results.stored.environment import environment

ROOT = Path(__file__).resolve().parents[1]
# Relative to the repository, as all paths that are committed.
RESULTS = Path("experiments/results")
FIDELITY = Path("docs/fidelity")
_WIDTH = 240  # characters of a line of JSON
# Settings that no version of vLLM changes, under which figures are published; what is given after them counts.
PLAIN = (
    "scheduler=mixed", "frontend=none", "max_num_seqs=256", "max_num_batched_tokens=8192", "gpu_memory_utilization=0.9"
)  # fmt: skip


def composed(*overrides: str) -> RunConfig:
    """The configuration that `run.py` would get from `PLAIN` and these overrides."""
    return parse(drop_hydra(compose([*PLAIN, *overrides])))


def write_result(path: Path, document: Any) -> None:
    """Write a JSON file in which each row of a table, and all that is short, stands on one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_json(document, "") + "\n", encoding="utf-8")


def _json(value: Any, margin: str, is_row: bool = False) -> str:
    text = json.dumps(value)
    if is_row or len(text) <= _WIDTH or not isinstance(value, dict | list):
        return text
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    inner, values = margin + " ", value.values() if isinstance(value, dict) else value
    are_rows = isinstance(value, list)
    lines = [f"{inner}{key}{_json(each, inner, are_rows)}" for key, each in zip(keys, values, strict=True)]
    start, end = "{}" if isinstance(value, dict) else "[]"
    return f"{start}\n" + ",\n".join(lines) + f"\n{margin}{end}"


def provenance(module: str) -> dict[str, Any]:
    """The command of this process, which runs `module`, and its environment. Of absolute paths, which are of a machine,
    the last part is told."""
    words = [f"<{Path(word).name}>" if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return {"command": shlex.join(["python", "-m", module, *words]), "environment": environment()}
