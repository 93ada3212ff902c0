"""What figures of runs and comparisons say below their titles, beginning with whether it was simulated or measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.config.schema.tasks.plotting import PlotConfig

if TYPE_CHECKING:
    import pandas as pd

_LOAD_NAMES = ("rate", "concurrency", "time scale")


def run_subtitle(summary: Mapping[str, Any]) -> str:
    """What was run."""
    parts = [
        measured_or_simulated(summary),
        f"{known(summary, 'model')} on {known(summary, 'device')}",
        f"trace {known(summary, 'trace')}, arrivals {known(summary, 'arrival')}",
        f"policy {known(summary, 'policy')}",
    ]
    if summary["num_blocks"] is not None:
        parts.append(f"{summary['num_blocks']:,} blocks of {summary['block_size']} tokens")
    if not summary["complete"]:
        parts.append("INTERRUPTED")
    if summary.get("num_excluded"):
        parts.append(f"{summary['num_excluded']:,} requests outside the warm-up/drain window")
    return " · ".join(parts)


def measured_or_simulated(summary: Mapping[str, Any]) -> str:
    return "SIMULATED" if summary.get("simulated") else f"MEASURED ({summary.get('engine') or 'unknown engine'})"


def known(summary: Mapping[str, Any], key: str) -> str:
    value = summary.get(key)
    return f"unknown {key}" if value is None or value != value else str(value)


def comparison_subtitle(table: pd.DataFrame, plot: PlotConfig, *notes: str) -> str:
    """What the configurations share, how many runs they are of, and the markers of simulated and measured runs."""
    simulated, fixed = table["simulated"].astype(bool), table.attrs["fixed"]
    both = "○ ┄ SIMULATED, ■ — MEASURED"
    kinds = both if simulated.nunique() > 1 else "all SIMULATED" if simulated.all() else "all MEASURED"
    count = int(table["num_runs"].sum())
    parts = [f"{count} run{'s' if count != 1 else ''}, {kinds}"]
    model, device = (
        (plot.name(fixed[key]) for key in ("model", "device")) if {"model", "device"} <= fixed.keys() else ("", "")
    )
    parts += [f"{model.rpartition('/')[2]} on {device}"] if model else []
    shown = ("model", "weights", "device", "trace", "arrival", *_LOAD_NAMES, "seed")
    parts += [
        f"{key} {value}" for key, value in fixed.items() if key in shown and not (model and key in ("model", "device"))
    ]
    if table["num_runs"].max() > 1:
        parts.append(f"means of {table['num_runs'].max()} seeds")
    if "verdict" in table and (table["verdict"] == "overloaded").any():
        parts.append("×: overloaded")
    for status, word in (("failed", "failed, not drawn"), ("interrupted", "interrupted before the end")):
        number_of = table.attrs[f"num_{status}"]
        parts += [f"{number_of} {word}"] if number_of else []
    return " · ".join([*parts, *notes])
