"""Digests of the files and folders that a configuration names, by which a changed input is noticed.

<folder>/inputs.json   SHA-256 by key of the configuration, as of the start of the task
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from harness.config import RunConfig
from harness.config.targets import named_targets, source_of
from harness.errors import ConfigError
from harness.results.stored.files import INPUTS

_MOST_FILES = 20_000  # in a folder; reading a home folder that was named by mistake would take hours


def input_digests(config: RunConfig) -> dict[str, str]:
    """SHA-256 of the content of each input that exists, by its key; code of the user's own is an input.

    Of the model's weights, which are too large to read each time, names, sizes and times of change count.
    """
    validation = config.validation
    measured = [name for name in (validation.measured, *validation.repeats) if name]
    named = {
        "trace.path": getattr(config.trace, "path", None),
        "trace.tokenizer": getattr(config.trace, "tokenizer", None),
        "cost.profile": getattr(config.cost, "profile", None),
        "cost.calibration": getattr(config.cost, "calibration", None),
        "speculation.acceptance_lengths": getattr(config.speculation, "acceptance_lengths", None),
        "validation.workload": validation.workload,
        **{f"validation.measured.{i}": name for i, name in enumerate(measured)},
    }
    paths = {key: _path(name) for key, name in named.items() if name}
    digests = {key: _digest(path, _content) for key, path in paths.items() if path.exists()}
    for key, name in named_targets(config.model_dump()):
        if path := source_of(name):
            digests[f"{key}={name}"] = _digest(path, _content)
    weights = getattr(config.engine, "weights", None)
    if weights and Path(weights).exists():
        digests["engine.weights"] = _digest(Path(weights), _stamp)
    return digests


def read_inputs(folder: Path) -> dict[str, str]:
    """The digests of the task that wrote to `folder`, those that are texts; empty where none can be read."""
    try:
        digests = json.loads((folder / INPUTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    texts = digests.items() if isinstance(digests, dict) else ()
    return {name: digest for name, digest in texts if isinstance(digest, str)}


def _path(name: str) -> Path:
    """The path in `name`, which may be `<tool>:<path>`."""
    path = Path(name)
    return path if path.exists() else Path(name.partition(":")[2] or name)


def _digest(path: Path, describe: Callable[[Path], str]) -> str:
    """Of a file, or of the names and contents of all files below a folder, hidden ones left out."""
    if not path.is_dir():
        return describe(path)
    files = (each for each in path.rglob("*") if each.is_file())
    inside = sorted((each.relative_to(path), each) for each in islice(files, _MOST_FILES + 1))
    if len(inside) > _MOST_FILES:
        raise ConfigError(f"{path}: more than {_MOST_FILES:,} files, where a profile, a record or a model has a few")
    visible = [(name, each) for name, each in inside if not any(part.startswith(".") for part in name.parts)]
    lines = "".join(f"{name.as_posix()}\0{describe(each)}\n" for name, each in visible)
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()


def _content(path: Path) -> str:
    if not path.is_file():
        return "not a file"  # such as a pipe, which can be read only once
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"
