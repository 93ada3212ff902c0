"""Many runs in one table: a row per result folder, and the keys of the configuration that differ between them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from engine.documents import read_json
from harness.errors import TwinServeError
from harness.results.files import FAILED, SUMMARY, read_summary

_NOT_SWEPT = ("task", "results", "progress", "plots", "verbose")  # keys that do not decide the outcome of a run
_OWN = ("run", "folder", "status", "error")  # columns that no configuration has
_COMPARED = ("simulated", "output_throughput", "window_start_s", "window_end_s")


def combine(folders: Sequence[Path]) -> pd.DataFrame:
    """One row per result folder, in the given order.

    Columns: run (name), folder, status (complete, interrupted, failed), error, then the configuration keys that differ
    between the runs, flattened with dots, then what their summaries hold besides. `attrs["parameters"]` lists the keys
    that differ; those that follow from the `name` or `kind` of their group are left out. A folder with a failed.json,
    without a readable summary, or that does not exist, is a row with status failed.
    """
    documents = [_read_row(folder) for folder in folders]
    configs = [_flat(document.get("config") or {}) for document in documents]
    parameters = _swept([config for config in configs if config])
    labels = _run_names(folders)
    rows = []
    for name, folder, document, config in zip(labels, folders, documents, configs, strict=True):
        metrics = {key: value for key, value in document.items() if not isinstance(value, (dict, list))}
        swept = {key: config.get(key) for key in parameters}
        head = {
            "run": name,
            "folder": str(folder),
            "status": metrics.pop("status"),
            "error": metrics.pop("error", None),
        }
        # the summary wins over the configuration, which may leave num_blocks open
        rows.append({**head, **swept, **metrics})
    table = pd.DataFrame(rows).infer_objects()
    table.attrs["parameters"] = parameters
    return table


def _read_row(folder: Path) -> dict[str, Any]:
    """The summary in the folder with a status, or the error that is there in its place."""
    try:
        if (folder / FAILED).exists():
            failure = read_json(folder / FAILED)
            return {"status": "failed", "error": str(failure["error"])}
        summary = read_summary(folder)
        missing = [key for key in _COMPARED if key not in summary]
        if missing:
            raise TwinServeError(f"{folder / SUMMARY}: not the summary of a run: without {missing[0]}")
    except (OSError, ValueError, KeyError, TypeError, TwinServeError) as error:
        return {"status": "failed", "error": str(error)}
    return {**summary, "status": "complete" if summary["complete"] else "interrupted"}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots; lists as text, so that they can be compared and sorted."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = str(value) if isinstance(value, list) else value
    return out


def _swept(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that differ between runs, without those that only follow from the kind or the name of their group."""
    keys = dict.fromkeys(key for config in configs for key in config if key.split(".")[0] not in (*_NOT_SWEPT, *_OWN))
    differing = [key for key in keys if len({config.get(key) for config in configs}) > 1]
    kept = []
    for key in differing:
        group = key.split(".")[0]
        leaders = [leader for leader in (f"{group}.kind", f"{group}.name") if leader in differing]
        leaders = leaders[: leaders.index(key)] if key in leaders else leaders
        if not any(_follows(key, leader, configs) for leader in leaders):
            kept.append(key)
    return kept


def _follows(key: str, leader: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    pairs = {(config.get(leader), config.get(key)) for config in configs}
    return len(pairs) == len({config.get(leader) for config in configs})


def _run_names(folders: Sequence[Path]) -> list[str]:
    """Paths as seen from the folder that holds all of them."""
    resolved = [folder.resolve() for folder in folders]
    common = Path(os.path.commonpath([path.parent for path in resolved])) if resolved else Path()
    return [path.relative_to(common).as_posix() for path in resolved]
