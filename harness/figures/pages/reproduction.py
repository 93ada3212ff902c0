"""How to get a result again: the command, versions, revision, seed and digests of input files; and all settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.documents import DocumentError, errors_as, read_json, read_yaml
from harness.errors import TwinServeError
from harness.figures.pages.elements import Cell, Markup, code, facts, folded, section, table
from harness.figures.pages.words import value_text
from harness.results.stored.inputs import read_inputs

_RUN = "python run.py"


def command_of(folder: Path) -> str | None:
    """The command line that wrote to `folder`, from what Hydra stored there; None where it stored nothing.

    Overrides of Hydra's own keys, such as folders of one machine, are left out.
    """
    sweep = _read(folder / "multirun.yaml")
    if isinstance(sweep, dict):
        overrides = ((sweep.get("hydra") or {}).get("overrides") or {}).get("task")
        return _joined(f"{_RUN} -m", overrides)
    return _joined(_RUN, _read(folder / ".hydra" / "overrides.yaml"))


def reproduction(
    folder: Path,
    environment: Mapping[str, Any],
    config: Mapping[str, Any],
    title: str = "All settings",
    context: Mapping[str, str] | None = None,
) -> Markup:
    """The section on how to reproduce what `folder` holds.

    title: of the table of the settings `config`. context: what many runs have in common, seeds among it; None for one
    run, whose seed is that of `config`.
    """
    command = command_of(folder)
    known = {name: value for name, value in environment.items() if value is not None}
    revision = known.pop("git_revision", None)
    changed = " with uncommitted changes" if known.pop("git_dirty", False) else ""
    lines = {
        "revision": f"{revision}{changed}" if revision else None,
        "seed": value_text(config["seed"]) if "seed" in config and context is None else None,
        "processor": known.pop("cpu_model", None),
        "platform": known.pop("platform", None),
    }
    sizes = ("cpu_cores", "memory_bytes", "transparent_hugepage")
    versions = " · ".join(f"{name} {value}" for name, value in known.items() if name not in sizes)
    shown = [(name, str(text)) for name, text in (*lines.items(), ("versions", versions)) if text]
    digests = [(f"SHA-256 of {key}", digest) for key, digest in read_inputs(folder).items()]
    return section(
        "Reproduce",
        code(command) if command else Markup(""),
        facts([*shown, *digests]),
        folded(title, _settings_table(config)),
    )


def _settings_table(config: Mapping[str, Any]) -> Markup:
    return table(["key", "value"], [[Cell(key), Cell(value_text(value))] for key, value in _flat(config)])


def settings_of(folder: Path) -> Mapping[str, Any]:
    """The configuration of the task that wrote to `folder`; empty where it cannot be read."""
    config = _read(folder / "config.yaml")
    return config if isinstance(config, dict) else {}


def read_document(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises TwinServeError where there is none."""
    with errors_as(TwinServeError, path):
        document = read_json(path)
    if not isinstance(document, dict):
        raise TwinServeError(f"{path}: not a JSON object")
    return document


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        found += (
            _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else [(f"{prefix}{key}", value)]
        )
    return found


def _joined(start: str, overrides: Any) -> str | None:
    if not isinstance(overrides, list):
        return None
    return shlex.join([*start.split(), *map(str, overrides)])


def _read(path: Path) -> Any:
    try:
        return read_yaml(path) if path.is_file() else None
    except DocumentError:
        return None
