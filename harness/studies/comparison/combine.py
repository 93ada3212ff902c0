"""Many runs in one table: a row per result folder, what tells them apart, and what they have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from engine.documents import read_json
from harness.errors import TwinServeError
from harness.figures.labels import parameter_label, value_label
from harness.results.stored.files import FAILED, SUMMARY, read_summary
from harness.studies.comparison.parameters import LOADS, SEED, Settings, Swept, find_swept, read_settings, value_of

_COMPARED = ("simulated", "output_throughput", "window_start_s", "window_end_s")
_GPUS = "num_gpus"
_SHAPES_GPUS = {"tensor_parallel_size", "pipeline_parallel_size", "replicas"}  # decide the number of GPUs


def combine(folders: Sequence[Path], names: Sequence[str] | None = None) -> pd.DataFrame:
    """One row per result folder, in the given order. names: of the runs, by default from the paths of the folders.

    Columns: run (name), label (of the configuration), folder, status (complete, interrupted, failed), error, then what
    was swept, seed, revision and cost_model, then what the summaries hold besides. A folder with a failed.json, without
    a readable summary, or that does not exist, is a row with status failed.

    attrs: `parameters`, the columns that tell configurations apart: groups and flattened keys; `load`, the swept key of
    the load or None; `repeats`, whether runs of one configuration differ in their seeds; `fixed`, the context of all
    runs by its name: model, device, cost model, trace, load, seed, revision.
    """
    documents = [_read_row(folder) for folder in folders]
    settings = [
        read_settings(folder, document.get("config") or {}) for folder, document in zip(folders, documents, strict=True)
    ]
    names = _run_names(folders) if names is None else names
    swept = find_swept([each for each in settings if each.keys])
    rows = [
        _row(name, folder, document, each, swept)
        for name, folder, document, each in zip(names, folders, documents, settings, strict=True)
    ]
    table = pd.DataFrame(rows).infer_objects()
    parameters = [*swept.parameters, *_told_apart_by(table, swept)]
    labels = [parameter_label(row, parameters) for row in table.to_dict("records")]
    table["label"] = labels if parameters or not (swept.load or swept.repeats) else ["all runs"] * len(table)
    table.attrs.update(
        parameters=parameters, load=swept.load, repeats=swept.repeats, fixed=_fixed(table, swept, parameters)
    )
    return table


def _row(name: str, folder: Path, document: Mapping[str, Any], settings: Settings, swept: Swept) -> dict[str, Any]:
    metrics = {key: value for key, value in document.items() if not isinstance(value, (dict, list))}
    status, error = metrics.pop("status"), metrics.pop("error", None)
    loads = [key for key in LOADS if key == swept.load or key in settings.keys]
    keys = {key: settings.keys.get(key) for key in (*swept.parameters, *loads) if key not in settings.choices}
    options = {key: value_of(settings, key) for key in swept.parameters if key not in keys}
    own = {"run": name, "label": name, "folder": str(folder), "status": status, "error": error}
    context = {
        SEED: settings.keys.get(SEED),
        "revision": _revision(document.get("environment") or {}),
        "cost_model": metrics.get("cost_source") or settings.keys.get("cost.kind"),
    }
    # the summary wins over a key of the configuration, which may leave num_blocks open
    return {**own, **keys, **options, **context, **metrics, **options}


def _revision(environment: Mapping[str, Any]) -> str | None:
    revision = environment.get("git_revision")
    return f"{str(revision)[:8]}{'+' if environment.get('git_dirty') else ''}" if revision else None


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


def _told_apart_by(table: pd.DataFrame, swept: Swept) -> list[str]:
    """What tells runs apart that are equal in configuration, load and seed: the revision of the code, or their names.

    Measured runs of the same revision are repetitions, as their times vary; simulated ones would be the same again.
    """
    alive = table[table["status"] != "failed"]
    columns = [*swept.parameters, *([swept.load] if swept.load else []), SEED]
    if alive.empty or not alive.duplicated(columns).any():
        return []
    if (
        alive["revision"].nunique() > 1
        and not alive[alive["simulated"].astype(bool)].duplicated([*columns, "revision"]).any()
    ):
        return ["revision"]
    return ["run"] if alive[alive["simulated"].astype(bool)].duplicated(columns).any() else []


def _fixed(table: pd.DataFrame, swept: Swept, parameters: Sequence[str]) -> dict[str, str]:
    """The context that all runs share, by its name; `several` where they do not and it is not a parameter."""
    alive = table[table["status"] != "failed"]
    columns = {
        "model": "model",
        "weights": "quantization",
        "device": "device",
        "GPUs": _GPUS,
        "cost model": "cost_model",
        "trace": "trace",
        "arrival": "arrival",
        **{key.rpartition(".")[2].replace("_", " "): key for key in LOADS if key != swept.load},
        SEED: SEED,
        "revision": "revision",
    }
    found = {}
    for name, column in columns.items():
        values = alive[column].dropna().unique().tolist() if column in alive else []
        follows = column in parameters or any(each.split(".")[0] == column for each in parameters)
        follows = follows or (column == _GPUS and not _SHAPES_GPUS.isdisjoint(parameters))
        if not values or (len(values) > 1 and follows) or values == ["none"]:
            continue
        if column == SEED and swept.repeats:
            found["seeds"] = ", ".join(map(str, sorted(values)[:6])) + (" ..." if len(values) > 6 else "")
        else:
            found[name] = value_label(values[0]) if len(values) == 1 else "several"
    return found


def _run_names(folders: Sequence[Path]) -> list[str]:
    """Paths as seen from the folder that holds all of them."""
    resolved = [folder.resolve() for folder in folders]
    common = Path(os.path.commonpath([path.parent for path in resolved])) if resolved else Path()
    return [path.relative_to(common).as_posix() for path in resolved]
