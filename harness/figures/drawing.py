"""Draws a chart into a figure of matplotlib, as wide as a column or a page of a paper."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.chart import Axis, Chart, Mark, Name, Panel, Series, Side, span
from harness.figures.placement import name_ends, name_points, wrapped_label
from harness.figures.style import (
    GREY,
    INK,
    WIDTHS_IN,
    color_of,
    head,
    log_axis,
    panels,
    place_axes,
    plain_numbers,
    styled,
    write_figures,
)

_NAME_SIZE = 6.5
_BOUNDS: dict[str, Any] = {"linewidth": 1, "alpha": 0.55}
_FEET_IN = 0.3  # the height of what is below the last panel
_FACT_CHARACTERS = 14.5  # in an inch
_MANY_POINTS = 100
_LEGEND_CHARACTERS = {"column": 52, "page": 110}  # in a row below the panels
_CROWDED_CHARACTERS, _CROWDED_TICKS = 28, 5  # of labels below an axis, which are turned then


def write_charts(charts: Mapping[str, Chart | None], folder: Path, plot: PlotConfig) -> list[Path]:
    """Draw the charts for which there is data in every format of `plot`; keys are file names without a suffix."""
    with styled():
        figures = {name: draw(chart, plot) for name, chart in charts.items() if chart is not None}
        return write_figures(figures, folder, plot)


def draw(chart: Chart, plot: PlotConfig) -> Figure:
    """The figure of a chart; `plot.labels` replaces its titles and names."""
    shown, columns = _in_rows(chart, plot)
    room = int(_FACT_CHARACTERS * WIDTHS_IN[plot.width] / columns)
    shown = [replace(panel, facts=_wrapped(panel.facts, room)) for panel in shown]
    rows = [shown[start : start + columns] for start in range(0, len(shown), columns)]
    heights = [max(panel.height_in for panel in row) for row in rows]
    size = (WIDTHS_IN[plot.width], sum(heights) + _FEET_IN)
    shared = chart.over_time or chart.by_column and plot.width == "page"
    figure, grid = panels(
        plot.name(chart.title), chart.subtitle, len(rows), columns, size,
        height_ratios=heights, sharex="col" if shared else "none",
    )  # fmt: skip
    for spare in grid.flat[len(shown) :]:
        spare.set_visible(False)
    for place, (axes, panel) in enumerate(zip(grid.flat, shown, strict=False)):
        before = shown[place - 1].y if place % columns else None
        has_y = before == panel.y or chart.by_column and before is not None and before.label == panel.y.label
        has_x = shared and place + columns < len(shown) and shown[place + columns].x == panel.x
        _draw_panel(axes, panel, has_x, has_y, plot)
    if chart.legend is not None:
        _legend(figure, shown, chart.legend, plot)
    if not any(panel.ends or panel.names for panel in shown):
        place_axes(figure)  # for this matplotlib looks at all axes once for each of them where labels are aligned
        figure.align_ylabels()
    else:
        figure.align_ylabels()
        figure.draw_without_rendering()  # places the axes, on which the room for names depends
        for axes, panel in zip(grid.flat, shown, strict=False):
            _write_names(axes, panel, plot)
    return figure


def _in_rows(chart: Chart, plot: PlotConfig) -> tuple[Sequence[Panel], int]:
    """The panels from left to right and from top to bottom, and how many are in a row."""
    if plot.width == "column":
        return chart.panels, chart.narrow_columns
    if not chart.by_column:
        return chart.panels, min(chart.columns, len(chart.panels))
    rows = len(chart.panels) // chart.columns
    return [panel for row in range(rows) for panel in chart.panels[row::rows]], chart.columns


def _draw_panel(axes: Axes, panel: Panel, has_x: bool, has_y: bool, plot: PlotConfig) -> None:
    """has_x, has_y: whether the panel below or to the left names the same axis, which is not said twice."""
    for series in panel.series:
        _draw_series(axes, series, sideways=panel.y.names is not None)
    for start, end in panel.shaded:
        axes.axvspan(start, end, color=GREY, alpha=0.12, linewidth=0)
    for mark in panel.marks:
        _draw_mark(axes, mark)
    _set_axis(axes, "x", panel.x, span(panel, "x"), plot)
    _set_axis(axes, "y", panel.y, span(panel, "y"), plot)
    axes.set_xlabel("" if has_x else plot.name(panel.x.label))
    axes.set_ylabel("" if has_y else plot.name(panel.y.label))
    if has_y and panel.y.names:
        axes.tick_params(labelleft=False)
    head(axes, plot.name(panel.title), panel.facts)


def _draw_series(axes: Axes, series: Series, sideways: bool) -> None:
    x, y = (_numbers(values) for values in (series.x, series.y))
    low, high = (None if values is None else _numbers(values) for values in (series.low, series.high))
    style: dict[str, Any] = {"color": color_of(series.color), "label": series.name, "linestyle": "none"}
    if series.kind == "line":
        style |= {"linestyle": _line_of(series), "linewidth": series.width}
    match series.kind:
        case "band":
            axes.fill_between(x, low, high, color=style["color"], alpha=0.4, linewidth=0)  # type: ignore[arg-type]
            return
        case "steps":
            if series.filled:
                base = 0 if low is None else low
                axes.stairs(y, x, color=style["color"], fill=True, alpha=0.18 if low is None else 0.5, baseline=base)
            axes.stairs(y, x, color=style["color"], linewidth=series.width, linestyle=_line_of(series), baseline=None)
            return
        case "bars":
            axes.barh(y, x, 0.6, color=style["color"])
    if low is not None and high is not None:
        (axes.hlines if sideways else axes.vlines)(y if sideways else x, low, high, color=style["color"], **_BOUNDS)
    if series.kind != "bars":
        axes.plot(x, y, **style, **_marker(series))
    for label, *at in zip(series.labels, x, y, strict=False):
        below = len(y) < 2 or y[0] < y[-1]  # of points on a rising curve; on a falling one there is room above
        axes.annotate(
            label, (at[0], at[1]), (5, -3 if below else 1), textcoords="offset points", color=style["color"], size=7,
            va="top" if below else "bottom",
        )  # fmt: skip


def _line_of(series: Series) -> Literal["none", "--", "-"]:
    return "none" if series.kind == "points" else "--" if series.dashed else "-"


def _marker(series: Series) -> dict[str, Any]:
    many = series.kind == "points" and len(series.x) > _MANY_POINTS
    face = "white" if series.hollow else color_of(series.color)
    size = 7 if series.marker == "x" else 3 if many or series.marker == "." else 4
    look: dict[str, Any] = {"marker": series.marker or None, "markersize": size, "markerfacecolor": face}
    return {**look, "markeredgewidth": 0, "alpha": 0.5} if many and not series.hollow else look


def _draw_mark(axes: Axes, mark: Mark) -> None:
    on_x, color = mark.axis == "x", color_of(mark.color)
    line = axes.axvline if on_x else axes.axhline
    line(mark.value, color=color, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1, label=mark.name)
    if not mark.written:
        return
    axes.annotate(
        mark.name, (mark.value, 1.0) if on_x else (0.0, mark.value), (2, -2 if on_x else 2),
        xycoords=("data", "axes fraction") if on_x else ("axes fraction", "data"), textcoords="offset points",
        color=color, size=6.5, va="top" if on_x else "bottom", rotation=270 if on_x else 0, in_layout=False,
    )  # fmt: skip


def _set_axis(axes: Axes, which: Side, axis: Axis, limits: tuple[float, float], plot: PlotConfig) -> None:
    drawn = axes.xaxis if which == "x" else axes.yaxis
    if axis.names is not None:
        _set_names(axes, which, [plot.name(name) for name in axis.names])
    elif axis.log:
        log_axis(axes, which, *limits, num_ticks=axis.num_ticks)
    else:
        axes.locator_params(axis=which, nbins=axis.num_ticks)
        plain_numbers(axes, which)
    (axes.set_xlim if which == "x" else axes.set_ylim)(*limits)
    if axis.ticks is not None:
        drawn.set_ticks(axis.ticks)
        if which == "x" and (len(axis.ticks) > _CROWDED_TICKS or max(axis.ticks) >= 10_000):
            axes.tick_params(axis="x", labelrotation=45)
    if axis.percent:
        drawn.set_major_formatter(lambda value, _: f"{100 * value:g}%")


def _set_names(axes: Axes, which: Side, names: Sequence[str]) -> None:
    if which == "y":
        axes.set_yticks(range(len(names)), names, size=_NAME_SIZE, color=INK)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        return
    names = [wrapped_label(name) for name in names]
    crowded = sum(map(len, names)) > _CROWDED_CHARACTERS
    axes.set_xticks(range(len(names)), names, rotation=30 if crowded else 0, ha="right" if crowded else "center")


def _legend(figure: Figure, shown: Sequence[Panel], title: str, plot: PlotConfig) -> None:
    """The names of all series: in rows below the panels in a column or where they are few, otherwise to the right."""
    named = {series.name: series for panel in reversed(shown) for series in reversed(panel.series) if series.name}
    names = [plot.name(name) for name in reversed(named)]
    if len(names) < 2 and not title:
        return
    handles = [
        Line2D(
            [], [], color=color_of(series.color), linestyle=_line_of(series),
            label=_wrapped(name, 32), linewidth=1.5, **_marker(series),
        )
        for name, series in zip(names, reversed(named.values()), strict=True)
    ]  # fmt: skip
    room, longest = _LEGEND_CHARACTERS[plot.width], max(map(len, names)) + 5
    is_below = plot.width == "column" or longest * len(names) + len(title) <= room
    legend = figure.legend(
        handles=handles, title=_wrapped(plot.name(title), 32), fontsize=7, frameon=False,
        loc="outside lower center" if is_below else "outside right center",
        ncols=max(1, min(len(names), room // longest)) if is_below else 1,
    )  # fmt: skip
    legend.get_title().set(fontsize=7, color=GREY)


def _write_names(axes: Axes, panel: Panel, plot: PlotConfig) -> None:
    if panel.ends:
        name_ends(axes, [name for series in panel.series if (name := _end(series, plot))], _NAME_SIZE)
    if panel.names:
        curves = [np.column_stack((series.x, series.y)) for series in panel.series if series.marker not in ("", "x")]
        names = [[replace(each, text=plot.name(each.text)) for each in choices] for choices in panel.names]
        name_points(axes, names, curves, _NAME_SIZE)


def _end(series: Series, plot: PlotConfig) -> Name | None:
    """The name of a series at its last known point; none for crosses, which repeat the name of their curve."""
    x, y = _numbers(series.x), _numbers(series.y)
    known = np.flatnonzero(np.isfinite(y))
    if not series.name or series.marker == "x" or not len(known):
        return None
    last = known[np.argmax(x[known])]
    return Name(float(x[last]), float(y[last]), plot.name(series.name), series.color)


def _wrapped(text: str, width: int) -> str:
    return "\n".join(part for line in text.splitlines() for part in textwrap.wrap(line, width))


def _numbers(values: Any) -> npt.NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)  # None becomes NaN
