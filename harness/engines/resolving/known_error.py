"""How far off a cost model is known to be on a device, in one short text; figures of docs/fidelity.md only.

simulator/profiles/known_errors.yaml   the figures, by GPU, model and format of the weights
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

import simulator
from simulator.profile.checks import base_name
from simulator.system import System

_FILE = Path(simulator.__path__[0]) / "profiles" / "known_errors.yaml"


def cost_model_text(system: System) -> str:
    """The cost model and its known error, such as "profiled (aiconfigurator h100_sxm vllm 0.24.0), TPOT within 3.2 % at
    the median of 45 runs of InferenceX"."""
    fitted = f", constants of {Path(system.calibration.path).name}" if system.calibration else ""
    if system.cost.kind == "roofline" and not fitted:
        known = _known()["roofline"]
        errors = f"TPOT off by {known['tpot']} %, throughput by {known['throughput']} %"
        return f"roofline, {errors} at the median of {known['runs']} public runs"
    if system.profile is None:
        return f"{system.cost.kind}{fitted}, not validated"
    source = system.profile.meta.source
    database = str(source.get("database") or "")
    if not database:
        return f"profiled on {system.profile.meta.device}{fitted}, not validated"
    named = f"profiled ({source['tool'].removesuffix('_core')} {database.replace('/', ' ')}){fitted}"
    return f"{named}, {'not validated with fitted constants' if fitted else _error(system, database)}"


def _error(system: System, database: str) -> str:
    """The known error of a profile from this part of NVIDIA's database: `<system>/<backend>/<version>`."""
    gpu, _, version = database.split("/")
    rows = [row for row in _rows() if (row["system"], row["tables"]) == (gpu, version)]
    name, weights = base_name(system.model.name).removesuffix("-instruct"), system.model.quantization.name
    for row in rows:
        if name in row["models"] and weights == row["quantization"]:
            return _of_row(row)
    if not rows:
        return f"not validated on {gpu} with these tables"
    errors = sorted(row["tpot"] for row in rows)
    span = f"{errors[0]:g} to {errors[-1]:g}" if errors[0] < errors[-1] else f"{errors[0]:g}"
    what = "median TPOT error" if all(row["statistic"] == "median" for row in rows) else "TPOT error"
    return f"not validated for this model (others on this device: {what} {span} %)"


def _of_row(row: dict[str, Any]) -> str:
    if row["statistic"] == "largest":
        return f"TPOT within {row['tpot']:g} % on a run of {row['source']}"
    return f"TPOT within {row['tpot']:g} % at the median of {row['runs']} runs of {row['source']}"


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _known()["rows"]
    return rows


@cache
def _known() -> dict[str, Any]:
    known: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return known
