"""What a tool is told of a folder of results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.documents import DocumentError, read_json, read_yaml
from harness.results.stored.files import CAPACITY, FAILED, SENT, SUMMARY, VALIDATION

Status = Literal["finished", "failed", "killed"]
CONFIG = "config.yaml"
_RESULTS = (SUMMARY, CAPACITY, VALIDATION)  # the file with the numbers of a task, which is written at its end
_TAGS = ("simulated", "engine", "model", "device", "trace", "arrival", "policy", "verdict")


@dataclass(frozen=True)
class Entry:
    """A run, or the sweep that runs are of.

    Attributes:
        folder: with the files.
        status: finished; failed, also if the run ended early; killed by a signal.
        started_ms, ended_ms: on the wall clock, since 1970.
        params: the resolved configuration by dotted key; of a sweep nothing.
        metrics: finite numbers, of the summary or of what the task found.
        tags: what runs are told apart by.
        note: one line on what is to know; empty where there is nothing.
        files: all tables, figures and pages.
    """

    folder: Path
    status: Status
    started_ms: int
    ended_ms: int
    params: Mapping[str, Any]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    note: str
    files: tuple[Path, ...]

    @property
    def name(self) -> str:
        return self.folder.name


def read_entry(folder: Path, failure: str | None = None, *, is_killed: bool = False) -> Entry:
    """The entry of a run.

    Args:
        failure: what it ended with, in one line, where its folder does not say it.
        is_killed: whether a signal ended it.
    """
    found = next((path for name in _RESULTS if (path := folder / name).is_file()), None)
    results = _mapping(found) if found else {}
    failure = failure or _mapping(folder / FAILED).get("error") or results.get("ended_early")
    status: Status = "killed" if is_killed or failure == "interrupted" else "failed" if failure else "finished"
    tags = {name: _text(results[name]) for name in _TAGS if results.get(name) is not None}
    commit = (results.get("environment") or {}).get("git_revision")
    notes = results.get("notes") or []
    config = {key: value for key, value in _mapping(folder / CONFIG).items() if key != "sinks"}
    return Entry(
        folder,
        status,
        _written_ms(folder / CONFIG, folder),
        _written_ms(found or folder / FAILED, folder),
        dict(_flat(config)),
        _numbers(results) if found and found.name == SUMMARY else dict(_nested_numbers(results)),
        tags | ({"git_commit": str(commit)} if commit else {}),
        " · ".join([failure] if failure else map(str, notes)),
        _files(folder),
    )


def sweep_entry(folder: Path, num_failed: int, num_runs: int) -> Entry:
    """The entry of a sweep, which has run `num_runs` jobs, some of which failed."""
    times = [_written_ms(path, folder) for path in folder.glob(f"*/{CONFIG}")] or [_written_ms(folder, folder)]
    files = _files(folder)
    return Entry(
        folder,
        "failed" if num_failed else "finished",
        min(times),
        max([*times, *(_written_ms(path, folder) for path in files)]),
        {},
        {"num_runs": float(num_runs), "num_failed": float(num_failed)},
        {"task": "sweep"},
        f"{num_failed} of {num_runs} runs failed" if num_failed else "",
        files,
    )


def _mapping(path: Path) -> Mapping[str, Any]:
    """The contents of a file; empty where it is missing or damaged, which other tasks report."""
    try:
        content = (read_yaml if path.suffix == ".yaml" else read_json)(path)
    except (DocumentError, OSError):
        return {}
    return content if isinstance(content, Mapping) else {}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested keys joined by dots; lists as JSON."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value) if isinstance(value, list | Mapping) else value


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers, and flags as 0 and 1."""
    numbers = {key: float(value) for key, value in values.items() if isinstance(value, int | float)}
    return {key: value for key, value in numbers.items() if math.isfinite(value)}


def _nested_numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and key not in ("config", "environment"):
            yield from _nested_numbers(value, f"{prefix}{key}.")
    yield from ((f"{prefix}{key}", value) for key, value in _numbers(values).items())


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _files(folder: Path) -> tuple[Path, ...]:
    paths = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    return tuple(path for path in paths if not path.name.startswith(".") and path.name != SENT)


def _written_ms(path: Path, otherwise: Path) -> int:
    return (path if path.exists() else otherwise).stat().st_mtime_ns // 1_000_000
