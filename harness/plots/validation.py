"""A measured run and its simulation side by side: latencies, the state over time, and step times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.plots.latency import CURVE_PERCENTILES, seconds_axis, share_axis
from harness.plots.latency import NAMES as LATENCY_NAMES
from harness.plots.style import COLORS, GREY, head, log_axis, panels, plain_numbers, save
from harness.results.tables import Floats
from harness.validation.metrics import LATENCIES
from harness.validation.report import NAMES
from harness.validation.steps import KINDS, StepReplay

if TYPE_CHECKING:
    from harness.validation.validate import Validation

_MEASURED, _SIMULATED = COLORS[7], COLORS[1]
_LINES: dict[str, dict[str, Any]] = {
    "MEASURED": {"color": _MEASURED, "linewidth": 1.8},
    "SIMULATED": {"color": _SIMULATED, "linestyle": "--"},
}
_TITLES = {**LATENCY_NAMES, "queue_time": "Queue time"}
_MAX_POINTS = 4000  # of a scatter plot


def write_validation_plots(validation: Validation, folder: Path) -> list[Path]:
    """Draw validation_latency.png, validation_levels.png and, where step times are known, validation_steps.png."""
    figures = {
        "validation_latency.png": draw_latencies(validation),
        "validation_levels.png": draw_levels(validation),
        "validation_steps.png": draw_steps(validation),
    }
    return [save(figure, folder / name) for name, figure in figures.items() if figure is not None]


def draw_latencies(validation: Validation) -> Figure | None:
    """Cumulative distributions over the scored requests, a panel per latency that was measured; repeats in grey."""
    curves = {}
    for name in LATENCIES:
        measured, simulated = (
            table[name].dropna().to_numpy(dtype=np.float64) for table in (validation.measured, validation.simulated)
        )
        if len(measured) and len(simulated):
            others = [table[name].dropna().to_numpy(dtype=np.float64) for table in validation.repeats]
            curves[name] = [np.percentile(values, CURVE_PERCENTILES) for values in (measured, simulated, *others)]
    if not curves:
        return None
    size = (3.1 * len(curves), 2.9)
    subtitle = _subtitle(validation)
    step_times = validation.config.validation.step_times
    if step_times != "measured":
        subtitle += f" · steps at the {step_times} of their executions, grey: of half of them"
    elif validation.repeats:
        subtitle += f" · grey: {len(validation.repeats)} repeats, errors from the median of all"
    figure, grid = panels("Latencies, measured and simulated", subtitle, 1, len(curves), size)
    for axes, (name, drawn) in zip(grid[0], curves.items(), strict=True):
        _draw_curves(axes, *drawn)
        head(axes, _TITLES[name], _error_facts(validation, name))
    grid[0][0].set_ylabel("share of requests")
    _legend(grid[0][-1], "lower right")
    return figure


def draw_levels(validation: Validation) -> Figure | None:
    """Running, waiting and KV use over time, as far as they were measured."""
    if not validation.levels:
        return None
    times = validation.measured_levels["time"].to_numpy()
    size = (9.0, 1.35 * len(validation.levels) + 0.3)
    figure, grid = panels(
        "The run over time, measured and simulated", _subtitle(validation), len(validation.levels), 1, size, sharex=True
    )
    for axes, (name, level) in zip(grid[:, 0], validation.levels.items(), strict=True):
        scale = 100 if name == "kv_cache_usage" else 1
        tables = (validation.measured_levels, validation.simulated_levels)
        for table, style in zip(tables, _LINES.values(), strict=True):
            axes.plot(times, table[name] * scale, drawstyle="steps-post", **style)
        difference = level["mean_abs_difference"] * scale
        unit = "% of blocks" if scale == 100 else "requests"
        head(axes, f"{NAMES[name]}: mean absolute difference {difference:.3g} {unit}")
        axes.set_ylabel(unit)
        highest = max(float(table[name].max()) for table in tables) * scale
        axes.set_ylim(0, 1.3 * highest or 1.0)  # room for the legend
        axes.locator_params(axis="y", nbins=3)
        plain_numbers(axes, "y")
    grid[-1, 0].set_xlim(float(times.min()), float(times.max()))
    grid[-1, 0].set_xlabel("time since the first arrival, s")
    plain_numbers(grid[-1, 0], "x")
    figure.align_ylabels()
    _legend(grid[0, 0], "upper right")
    return figure


def draw_steps(validation: Validation) -> Figure | None:
    """Predicted over measured step times, a panel per kind of step; None without step times."""
    replay = next(iter(validation.steps), None)
    if replay is None or replay.steps.empty:
        return None
    errors = replay.summary()["errors"]
    kinds = [kind for kind in KINDS if kind in errors]
    size = (max(8.0, 3.2 * len(kinds)), 3.5)
    title = "Step times of the measured plans, predicted and measured"
    figure, grid = panels(title, _subtitle(validation), 1, len(kinds), size)
    for axes, kind in zip(grid[0], kinds, strict=True):
        _draw_scatter(axes, *_points(replay, kind))
        more = f", {replay.statistic} of {replay.num_executions}" if replay.num_executions > 1 else ""
        axes.set_xlabel(f"measured{more}, ms")
        found = errors[kind]
        counted = f"{found['count']:,} step" + ("" if found["count"] == 1 else "s")
        facts = f"{counted}   MAPE {found['mape_pct']:.1f}%   bias {found['bias_pct']:+.1f}%"
        head(axes, f"{kind.capitalize()} steps", facts)
    grid[0][0].set_ylabel("predicted, ms")
    return figure


def _draw_curves(axes: Axes, measured: Floats, simulated: Floats, *repeats: Floats) -> None:
    scale = seconds_axis(axes, [measured, simulated, *repeats])
    share_axis(axes)
    for curve in repeats:
        axes.plot(curve * scale, CURVE_PERCENTILES / 100, color=GREY, linewidth=0.7, alpha=0.6)
    for curve, style in zip((measured, simulated), _LINES.values(), strict=True):
        axes.plot(curve * scale, CURVE_PERCENTILES / 100, **style)


def _points(replay: StepReplay, kind: str) -> tuple[Floats, Floats]:
    """Measured and predicted times in ms, evenly thinned out where there are too many to be told apart."""
    steps = replay.steps[replay.steps["kind"] == kind]
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
    axes.set_aspect("equal")


def _error_facts(validation: Validation, name: str) -> str:
    rows = validation.errors[validation.errors["metric"] == name].set_index("statistic")["error_pct"]
    shown = {"mean": "mean", "median": "p50", "p99": "p99"}
    return "   ".join(f"{label} {rows[key]:+.1f}%" for key, label in shown.items() if not np.isnan(rows[key]))


def _subtitle(validation: Validation) -> str:
    run, config = validation.run, validation.config
    parts = [f"MEASURED: {run.engine}, {Path(run.source).name}"]
    parts.append(f"SIMULATED: {config.model.name} on {config.device.name}, cost {config.cost.kind}")
    part = config.validation.score
    if part != "all":
        parts.append(f"{part.replace('_', ' ')} of the requests")
    if validation.on_fitted_data:
        parts.append("SCORED ON FITTED DATA")
    return " · ".join(parts)


def _legend(axes: Axes, place: Literal["lower right", "upper right"]) -> None:
    handles = [Line2D([], [], label=label, **style) for label, style in _LINES.items()]
    axes.legend(handles=handles, loc=place, fontsize=8, frameon=False, ncols=1 if place == "lower right" else 2)
