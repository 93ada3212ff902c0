"""A calibration: its constants before and after the fit, within their limits, and the errors before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.config.plotting import PlotConfig
from harness.plots.labels import number
from harness.plots.style import COLORS, GREY, INK, LIGHT, WIDTHS_IN, head, panels

_ROW_IN = 0.28  # of a constant, whose name and values take two lines
_BEFORE: dict[str, Any] = {"color": COLORS[0], "markerfacecolor": "white"}
_AFTER: dict[str, Any] = {"color": COLORS[1]}


def draw_calibration(document: Mapping[str, Any], plot: PlotConfig) -> Figure:
    """The content of a calibration.yaml. Calibrations of earlier versions do not have the constants before the fit and
    the errors one by one: then the fitted values and the whole error are drawn."""
    objective, data = document.get("objective") or {}, document.get("fitted_on") or {}
    constants, errors = _constants(document), _errors(objective)
    facts = [f"cost={document.get('cost')}", f"fitted to {data.get('engine')}, {data.get('num_requests')} requests"]
    facts += ["hollow: before the fit, filled: after it", "bars: limits of the constants"]
    rows, columns = (2, 1) if plot.width == "column" else (1, 2)
    heights = [len(constants), len(errors)]
    tall = sum(heights) * _ROW_IN + 1.6 if rows == 2 else max(heights) * _ROW_IN + 1.2
    options = {"height_ratios": [count + 2 for count in heights]} if rows == 2 else {}
    figure, grid = panels(
        "A calibration of the cost model", " · ".join(facts), rows, columns, (WIDTHS_IN[plot.width], tall), **options
    )
    left, right = grid.flat
    _draw_constants(left, constants, plot)
    _draw_errors(right, errors, plot)
    whole = f"{objective.get('before', np.nan):.2%} before, {objective.get('after', np.nan):.2%} after"
    head(left, "Constants", "before → after")
    head(right, "Errors", f"{whole}\n{objective.get('evaluations', 'unknown')} evaluations")
    return figure


def _constants(document: Mapping[str, Any]) -> dict[str, tuple[float, float, float, float]]:
    """Before, after, low and high of each fitted constant; NaN where the file does not say."""
    objective = document.get("objective") or {}
    start, limits = objective.get("start") or {}, objective.get("limits") or {}
    names = start or document["constants"]
    unknown = (np.nan, np.nan)
    return {name: (start.get(name, np.nan), document["constants"][name], *limits.get(name, unknown)) for name in names}


def _errors(objective: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    before, after = objective.get("errors_before") or {}, objective.get("errors_after") or {}
    found = {name: (before[name], after[name]) for name in before if name in after}
    return found or {"all": (objective.get("before", np.nan), objective.get("after", np.nan))}


def _draw_constants(axes: Axes, constants: Mapping[str, tuple[float, float, float, float]], plot: PlotConfig) -> None:
    """Each constant on an axis of its own, from its low to its high limit, or from 0 to its value."""
    labels = []
    for place, (name, (before, after, low, high)) in enumerate(constants.items()):
        low, high = (low, high) if np.isfinite([low, high]).all() else (0.0, max(abs(after), 1e-9))
        axes.plot([0, 1], [place, place], color=LIGHT, linewidth=3, solid_capstyle="butt", zorder=1)
        at = [(value - low) / ((high - low) or 1) for value in (before, after)]
        axes.plot(at, [place, place], color=GREY, linewidth=0.8, zorder=2)
        for share, style in zip(at, (_BEFORE, _AFTER), strict=True):
            axes.plot([share], [place], "o", markersize=5, clip_on=False, zorder=3, **style)
        start = f"{before:.3g} → " if np.isfinite(before) else ""
        shown = plot.name(name) if plot.name(name) != name else name.replace("_", " ")
        labels.append(f"{shown}\n{start}{after:.3g}")
    axes.set_yticks(range(len(labels)), labels, size=6.5, color=INK)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(-0.03, 1.03)
    axes.set_xticks([0, 1], ["lower limit", "upper limit"])
    axes.grid(False)


def _draw_errors(axes: Axes, errors: Mapping[str, tuple[float, float]], plot: PlotConfig) -> None:
    for place, (before, after) in enumerate(errors.values()):
        axes.plot([100 * before, 100 * after], [place, place], color=GREY, linewidth=0.8)
        for value, style in ((before, _BEFORE), (after, _AFTER)):
            axes.plot([100 * value], [place], "o", markersize=5, zorder=3, **style)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(errors)), [plot.name(name) for name in errors], size=6.5, color=INK)
    axes.set_ylim(len(errors) - 0.4, -0.6)
    axes.set_xlabel("error, %")
    axes.xaxis.set_major_formatter(lambda value, _: number(value))
