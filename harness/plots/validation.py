"""A measured run and its simulation side by side: latencies, the state over time, and step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from harness.config.plotting import PlotConfig
from harness.measured.names import NAMES
from harness.plots.latency import CURVE_PERCENTILES, seconds_axis, share_axis
from harness.plots.latency import NAMES as LATENCY_NAMES
from harness.plots.style import COLORS, GREY, WIDTHS_IN, fitting, head, log_axis, panels, plain_numbers
from harness.results.latencies import LATENCIES
from harness.results.tables import Floats

_MEASURED, _SIMULATED = COLORS[7], COLORS[1]
_LINES: dict[str, dict[str, Any]] = {
    "MEASURED": {"color": _MEASURED, "linewidth": 1.8},
    "SIMULATED": {"color": _SIMULATED, "linestyle": "--"},
}
_TITLES = {name: LATENCY_NAMES.get(name, NAMES[name]) for name in LATENCIES}
_MAX_POINTS = 4000  # of a scatter plot
_PANEL_IN = {"column": 1.6, "page": 2.2}
_TITLE_ROW_IN = 0.18  # from the top of a panel, over its line of facts
_SQUARE_IN = {"column": 2.9, "page": 2.6}  # of panels whose axes are about as high as wide


def draw_latencies(
    measured: pd.DataFrame,
    simulated: pd.DataFrame,
    repeats: Sequence[pd.DataFrame],
    errors: pd.DataFrame,
    subtitle: str,
    plot: PlotConfig,
) -> Figure | None:
    """Cumulative distributions over requests, a panel for each measured latency of the tables; repeats in grey.

    Tables have a row per request with its latencies in s; `errors` has columns metric, statistic, error_pct.
    """
    curves = {}
    for name in _TITLES:
        if name not in measured:
            continue
        values = [table[name].dropna().to_numpy(dtype=np.float64) for table in (measured, simulated, *repeats)]
        if len(values[0]) and len(values[1]):
            curves[name] = [np.percentile(each, CURVE_PERCENTILES) for each in values]
    if not curves:
        return None
    per_row = len(curves) if len(curves) < 4 else 2
    title = "Latencies, measured and simulated"
    figure, grid = fitting(title, subtitle, len(curves), plot, _PANEL_IN[plot.width], per_row)
    for axes, (name, drawn) in zip(grid, curves.items(), strict=True):
        _draw_curves(axes, drawn, plot)
        head(axes, plot.name(_TITLES[name]), _error_facts(errors, name))
        if _begins_row(axes):
            axes.set_ylabel("share of requests")
    _legend(grid[-1], "inside")
    return figure


def draw_levels(
    measured: pd.DataFrame,
    simulated: pd.DataFrame,
    levels: Mapping[str, Mapping[str, float]],
    subtitle: str,
    plot: PlotConfig,
) -> Figure | None:
    """Running, waiting and KV use over time, a panel for each of `levels`, which has its mean absolute difference.

    Both tables have the same column `time`, in s, and a column per level.
    """
    if not levels:
        return None
    times = measured["time"].to_numpy()
    size = (WIDTHS_IN[plot.width], 1.25 * len(levels) + 0.3)
    title = "The run over time, measured and simulated"
    figure, grid = panels(title, subtitle, len(levels), 1, size, sharex=True)
    for axes, (name, level) in zip(grid[:, 0], levels.items(), strict=True):
        scale = 100 if name == "kv_cache_usage" else 1
        for table, style in zip((measured, simulated), _LINES.values(), strict=True):
            axes.plot(times, table[name] * scale, drawstyle="steps-post", **style)
        difference = level["mean_abs_difference"] * scale
        unit = "% of blocks" if scale == 100 else "requests"
        head(axes, plot.name(NAMES[name]), f"mean absolute difference {difference:.3g} {unit}")
        axes.set_ylabel(unit)
        highest = max(float(table[name].max()) for table in (measured, simulated)) * scale
        axes.set_ylim(0, 1.1 * highest or 1.0)
        axes.locator_params(axis="y", nbins=3)
        plain_numbers(axes, "y")
    grid[-1, 0].set_xlim(float(times.min()), float(times.max()))
    grid[-1, 0].set_xlabel("time since the first arrival, s")
    plain_numbers(grid[-1, 0], "x")
    figure.align_ylabels()
    _legend(grid[0, 0], "above")
    return figure


def draw_steps(
    steps: pd.DataFrame,
    errors: Mapping[str, Mapping[str, float]],
    num_executions: int,
    subtitle: str,
    plot: PlotConfig,
) -> Figure | None:
    """Predicted over measured step times, a panel per kind of step; None without steps.

    `steps` has columns kind, measured, predicted (s); `errors` has count, mape_pct and bias_pct by kind.
    """
    kinds = [kind for kind in errors if kind != "all"]
    if not kinds:
        return None
    title = "Step times of the measured plans, predicted and measured"
    figure, grid = fitting(title, subtitle, len(kinds), plot, _SQUARE_IN[plot.width], per_row=3)
    for axes, kind in zip(grid, kinds, strict=True):
        _draw_scatter(axes, *_points(steps[steps["kind"] == kind]))
        more = f", median of {num_executions}" if num_executions > 1 else ""
        axes.set_xlabel(f"measured{more}, ms")
        found = errors[kind]
        counted = f"{found['count']:,} step" + ("" if found["count"] == 1 else "s")
        facts = f"{counted}\nMAPE {found['mape_pct']:.1f}%   bias {found['bias_pct']:+.1f}%"
        head(axes, plot.name(f"{kind.capitalize()} steps"), facts)
        if _begins_row(axes):
            axes.set_ylabel("predicted, ms")
    return figure


def _begins_row(axes: Axes) -> bool:
    place = axes.get_subplotspec()
    return place is not None and place.is_first_col()


def _draw_curves(axes: Axes, curves: Sequence[Floats], plot: PlotConfig) -> None:
    """`curves` are of the measured run, of the simulated one, and of repeats."""
    scale, _ = seconds_axis(axes, curves, log=None if plot.log is None else "x" in plot.log)
    share_axis(axes)
    measured, simulated, *repeats = curves
    for curve in repeats:
        axes.plot(curve * scale, CURVE_PERCENTILES / 100, color=GREY, linewidth=0.7, alpha=0.6)
    for curve, style in zip((measured, simulated), _LINES.values(), strict=True):
        axes.plot(curve * scale, CURVE_PERCENTILES / 100, **style)


def _points(steps: pd.DataFrame) -> tuple[Floats, Floats]:
    """Measured and predicted times in ms, evenly thinned out to at most `_MAX_POINTS`."""
    steps = steps.iloc[:: -(-len(steps) // _MAX_POINTS)]
    return steps["measured"].to_numpy() * 1e3, steps["predicted"].to_numpy() * 1e3


def _draw_scatter(axes: Axes, measured: Floats, predicted: Floats) -> None:
    everything = np.concatenate((measured, predicted))
    low, high = float(everything.min()) / 1.15, float(everything.max()) * 1.15
    axes.plot([low, high], [low, high], color=GREY, linewidth=0.8)
    axes.plot(measured, predicted, "o", color=COLORS[0], markersize=2.5, alpha=0.35, markeredgewidth=0)
    for which in ("x", "y"):
        log_axis(axes, which, low, high, num_ticks=7)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)


def _error_facts(errors: pd.DataFrame, name: str) -> str:
    rows = errors[errors["metric"] == name].set_index("statistic")["error_pct"]
    shown = {"mean": "mean", "median": "p50", "p99": "p99"}
    return "   ".join(f"{label} {rows[key]:+.1f}%" for key, label in shown.items() if not np.isnan(rows[key]))


def _legend(axes: Axes, place: Literal["inside", "above"]) -> None:
    """Inside below the curves of a distribution, or beside the title of a panel."""
    handles = [Line2D([], [], label=label, **style) for label, style in _LINES.items()]
    options: dict[str, Any] = {"loc": "lower right"}
    if place == "above":
        raised = ScaledTranslation(0, _TITLE_ROW_IN, axes.figure.dpi_scale_trans)
        options |= {"bbox_to_anchor": (1.0, 1.0), "bbox_transform": axes.transAxes + raised, "borderaxespad": 0.0}
        options |= {"ncols": 2}
    axes.legend(handles=handles, fontsize=7, frameon=False, **options).set_in_layout(False)
