"""A measured run and its simulation side by side: latencies, the state over time, step times, and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from engine.documents import DocumentError, read_json
from harness.config.schema.tasks.plotting import PlotConfig
from harness.config.schema.traffic.reader import nearest
from harness.errors import ConfigError, TwinServeError
from harness.figures.chart import Axis, Chart, Mark, Panel, Series, is_known
from harness.figures.charts.closed_loops import rows_chart
from harness.figures.charts.latency import CURVE_PERCENTILES, SHARES, seconds_axis
from harness.results.compared_names import NAMES
from harness.results.statistics.latencies import LATENCIES
from harness.results.stored.files import (
    ERRORS,
    MEASURED,
    SIMULATED,
    VALIDATED_LATENCIES,
    VALIDATED_LEVELS,
    VALIDATED_STEPS,
    VALIDATION,
    read_table,
)
from harness.results.tables import Floats

STATISTICS = {"median": "p50", "total": "", "request_mape": "each, MAPE", "request_p99": "each, p99"}
_MAX_POINTS = 4000  # of a scatter plot


def stored_charts(folder: Path, plot: PlotConfig) -> dict[str, Chart | None]:
    """Charts of the validation in `folder`, of a run or of public closed loops, by file name; None without data.

    Raises:
        TwinServeError: as `validation_charts`.
    """
    try:
        document = read_json(folder / VALIDATION)
    except (DocumentError, OSError) as error:
        raise TwinServeError(f"{folder / VALIDATION}: {error}") from None
    if not isinstance(document, dict) or not {"errors", "subtitle"} <= document.keys():
        raise TwinServeError(f"{folder}: holds no tables to draw; run task=validate once more")
    try:
        errors = pd.read_csv(folder / ERRORS)
    except (OSError, ValueError) as error:
        raise TwinServeError(f"{folder / ERRORS}: not readable ({error})") from None
    if isinstance(document["errors"], dict):
        return {"validation_rows": rows_chart(errors, document["subtitle"])}
    return validation_charts(document, folder, errors, plot)


def validation_charts(
    document: Mapping[str, Any], folder: Path, errors: pd.DataFrame, plot: PlotConfig
) -> dict[str, Chart | None]:
    """Charts of the validation in `folder`, whose validation.json holds `document`, by file name; None without data.

    errors: has columns metric, statistic, error_pct. `plot.y` chooses latencies and levels.

    Raises:
        TwinServeError: a file is missing or cannot be read, or `plot.y` names no latency or level of the validation.
    """
    subtitle, in_grey, steps = document["subtitle"], document["shown_in_grey"], document["steps"]
    chosen = _chosen(plot, document["levels"])
    columns = ["run", *(name for name in LATENCIES if name in chosen)]
    latencies = _by_run(read_table(folder / VALIDATED_LATENCIES, columns))
    levels = _by_run(read_table(folder / VALIDATED_LEVELS))
    shown = {name: level for name, level in document["levels"].items() if name in chosen}
    of_latencies = f"{subtitle} · {in_grey}" if in_grey else subtitle
    return {
        "validation_latency": latencies_chart(latencies, errors, of_latencies, plot),
        "validation_levels": levels_chart(levels[MEASURED], levels[SIMULATED], shown, subtitle),
        "validation_steps": steps and steps_chart(read_table(folder / VALIDATED_STEPS), steps["errors"], subtitle),
    }


def latencies_chart(
    runs: Mapping[str, pd.DataFrame], errors: pd.DataFrame, subtitle: str, plot: PlotConfig
) -> Chart | None:
    """Cumulative distributions over requests, a panel for each measured latency of the tables.

    runs: by name, the measured run and its simulation first, then repeats; each a table with a row per request and its
    latencies in s. `errors` has columns metric, statistic, error_pct.
    """
    panels = []
    for name in LATENCIES:
        found = [table[name].dropna().to_numpy(dtype=np.float64) for table in runs.values() if name in table]
        if len(found) > 1 and len(found[0]) and len(found[1]):
            curves = [np.percentile(values, CURVE_PERCENTILES) for values in found if len(values)]
            facts = _error_facts(errors[errors["metric"] == name].set_index("statistic")["error_pct"])
            panels.append(_distribution(NAMES[name], curves, facts, plot))
    per_row = len(panels) if len(panels) < 4 else 2
    return Chart("Latencies, measured and simulated", subtitle, panels, per_row, legend="") if panels else None


def levels_chart(
    measured: pd.DataFrame, simulated: pd.DataFrame, levels: Mapping[str, Mapping[str, float]], subtitle: str
) -> Chart | None:
    """Running, waiting and KV use over time, a panel for each of `levels`, which has its mean absolute difference.

    Both tables have the same column `time`, in s, and a column per level.
    """
    if not levels:
        return None
    times = measured["time"].to_numpy()
    x = Axis("time since the first arrival, s", start=float(times.min()), end=float(times.max()), num_ticks=10)
    panels = []
    for name, level in levels.items():
        scale, unit = (100, "% of blocks") if name == "kv_cache_usage" else (1, "requests")
        values = [table[name].to_numpy() * scale for table in (measured, simulated)]
        y = Axis(unit, start=0, end=1.1 * max(map(np.max, values)) or 1.0, num_ticks=3)
        facts = f"mean absolute difference {level['mean_abs_difference'] * scale:.3g} {unit}"
        lines = [
            Series("MEASURED", "steps", times, values[0][:-1], 7, width=1.8),
            Series("SIMULATED", "steps", times, values[1][:-1], 1, dashed=True),
        ]
        panels.append(Panel(NAMES[name], x, y, lines, facts=facts, height_in=1.2, wide=True))
    title = "The run over time, measured and simulated"
    return Chart(title, subtitle, panels, columns=1, over_time=True, legend="")


def steps_chart(steps: pd.DataFrame, errors: Mapping[str, Mapping[str, float]], subtitle: str) -> Chart | None:
    """Predicted over measured step times, a panel per kind of step; None without steps.

    `steps` has columns kind, measured, predicted (s); `errors` has count, mape_pct and bias_pct by kind.
    """
    panels = []
    for kind in (each for each in errors if each != "all"):
        found = errors[kind]
        counted = f"{found['count']:,} step" + ("" if found["count"] == 1 else "s")
        facts = f"{counted}\nMAPE {found['mape_pct']:.1f}%   bias {found['bias_pct']:+.1f}%"
        own = steps[steps["kind"] == kind]
        own = own.iloc[:: max(1, -(-len(own) // _MAX_POINTS))]
        measured, predicted = (own[name].to_numpy() * 1e3 for name in ("measured", "predicted"))
        low, high = min(measured.min(), predicted.min()) / 1.15, max(measured.max(), predicted.max()) * 1.15
        x, y = (Axis(label, log=True, start=low, end=high, num_ticks=7) for label in ("measured, ms", "predicted, ms"))
        series = [
            Series("", "line", [low, high], [low, high], "grey", width=0.8),
            Series("", "points", measured, predicted, 0, marker="o"),
        ]
        panels.append(Panel(f"{kind.capitalize()} steps", x, y, series, facts=facts, height_in=2.2))
    title = "Step times of the measured plans, predicted and measured"
    return Chart(title, subtitle, panels, columns=3) if panels else None


def errors_chart(errors: Sequence[Mapping[str, Any]]) -> Chart:
    """Bars of the errors in percent, which are known for all rows, beside the noise floor."""
    names = tuple(
        f"{NAMES[row['metric']]} {STATISTICS.get(row['statistic'], row['statistic'])}".strip() for row in errors
    )
    series = [Series("error of the simulation", "bars", [row["error_pct"] for row in errors], range(len(errors)), 1)]
    noise = [
        (place, row["noise_floor_pct"]) for place, row in enumerate(errors) if is_known(row.get("noise_floor_pct"))
    ]
    if noise:
        at, floors = (list(values) for values in zip(*noise, strict=True))
        low = [-floor for floor in floors]
        zeros = [0.0] * len(at)
        series.append(Series("noise floor", "points", zeros, at, 7, low=low, high=floors, marker="."))
    height, zero = 0.5 + 0.17 * len(errors), Mark("no error", "x", 0.0, "grey")
    panel = Panel("Error by metric", Axis("error, %"), Axis(names=names), series, [zero], height_in=height, wide=True)
    return Chart("Errors of the simulation", "", [panel], columns=1, legend="")


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


def _distribution(title: str, curves: Sequence[Floats], facts: str, plot: PlotConfig) -> Panel:
    """`curves` are of the measured run, of the simulated one, and of repeats."""
    scale, x = seconds_axis(curves, log=None if plot.log is None else "x" in plot.log)
    measured, simulated, *repeats = (curve * scale for curve in curves)
    shares = CURVE_PERCENTILES / 100
    series = [Series("repeats", "line", repeat, shares, "grey", width=0.7) for repeat in repeats]
    series.append(Series("MEASURED", "line", measured, shares, 7, width=1.8))
    series.append(Series("SIMULATED", "line", simulated, shares, 1, dashed=True))
    return Panel(title, x, SHARES, series, facts=facts, height_in=2.1)


def _error_facts(errors: pd.Series[float]) -> str:
    shown = {"mean": "mean", "median": "p50", "p99": "p99"}
    return "   ".join(f"{label} {errors[key]:+.1f}%" for key, label in shown.items() if not np.isnan(errors[key]))
