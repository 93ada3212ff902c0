"""The figures of a validation, drawn from the files that it left in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from engine.documents import DocumentError, read_json
from harness.config.plotting import PlotConfig
from harness.config.schema import nearest
from harness.errors import ConfigError, TwinServeError
from harness.plots.closed_loops import draw_rows
from harness.plots.validation import draw_latencies, draw_levels, draw_steps
from harness.results.files import (
    ERRORS,
    MEASURED,
    SIMULATED,
    VALIDATED_LATENCIES,
    VALIDATED_LEVELS,
    VALIDATED_STEPS,
    VALIDATION,
    read_table,
)
from harness.results.latencies import LATENCIES


def draw_validation(folder: Path, plot: PlotConfig) -> dict[str, Figure | None]:
    """Figures of the validation in `folder`, by name; None without data. `plot.y` chooses latencies and levels.

    Raises:
        TwinServeError: a file is missing or cannot be read, or `plot.y` names no latency or level of the validation.
    """
    document = _document(folder)
    try:
        errors = pd.read_csv(folder / ERRORS)
    except (OSError, ValueError) as error:
        raise TwinServeError(f"{folder / ERRORS}: not readable ({error})") from None
    if isinstance(document["errors"], dict):
        return {"validation_rows": draw_rows(errors, document["subtitle"], plot)}
    subtitle, in_grey, steps = document["subtitle"], document["shown_in_grey"], document["steps"]
    chosen = _chosen(plot, document["levels"])
    columns = ["run", *(name for name in LATENCIES if name in chosen)]
    latencies = _by_run(read_table(folder / VALIDATED_LATENCIES, columns))
    levels = _by_run(read_table(folder / VALIDATED_LEVELS))
    shown = {name: level for name, level in document["levels"].items() if name in chosen}
    measured, simulated, *repeats = latencies.values()
    subtitle_of_latencies = f"{subtitle} · {in_grey}" if in_grey else subtitle
    return {
        "validation_latency": draw_latencies(measured, simulated, repeats, errors, subtitle_of_latencies, plot),
        "validation_levels": draw_levels(levels[MEASURED], levels[SIMULATED], shown, subtitle, plot),
        "validation_steps": steps
        and draw_steps(read_table(folder / VALIDATED_STEPS), steps["errors"], steps["num_executions"], subtitle, plot),
    }


def _document(folder: Path) -> Mapping[str, Any]:
    try:
        document = read_json(folder / VALIDATION)
    except (DocumentError, OSError) as error:
        raise TwinServeError(f"{folder / VALIDATION}: {error}") from None
    if not isinstance(document, dict) or not {"errors", "subtitle"} <= document.keys():
        raise TwinServeError(f"{folder}: holds no tables to draw; run task=validate once more")
    return document


def _chosen(plot: PlotConfig, levels: Mapping[str, Any]) -> list[str]:
    """The latencies and levels to draw."""
    known = [*LATENCIES, *levels]
    for name in plot.y:
        if name not in known:
            raise ConfigError(f"plot.y={name}: no latency or level of this validation{nearest(name, known)}")
    return list(plot.y) or known


def _by_run(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each run: measured, simulated, and repeats."""
    return {str(name): rows for name, rows in table.groupby("run", sort=False)}
