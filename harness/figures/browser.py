"""A chart as JSON for `pages/assets/figures.js`, which draws it in the browser with Bokeh: writing a page loads no
plotting library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from harness.figures.chart import Axis, Chart, Color, Mark, Panel, Series, Shade, span

_DIGITS = 5
_PX = (60, 115)  # of a panel: around its axes, and per inch in a file


def panels_data(chart: Chart) -> list[dict[str, Any]]:
    """What JSON can hold of each panel. Those over one time share a `group`, whose range of x they share."""
    return [_panel(panel, "time" if chart.over_time else None) for panel in chart.panels]


def _panel(panel: Panel, group: str | None) -> dict[str, Any]:
    around, per_inch = _PX
    return {
        "title": panel.title,
        "note": " · ".join(panel.facts.splitlines()),
        "wide": panel.wide,
        "height": round(around + per_inch * panel.height_in),
        "group": group,
        "x": _axis(panel.x, *span(panel, "x")),
        "y": _axis(panel.y, *span(panel, "y")),
        "series": [_series(series) for series in panel.series if len(series.x)],
        "marks": [_mark(mark) for mark in panel.marks],
        "shaded": [[_rounded(start), _rounded(end)] for start, end in panel.shaded],
    }


def _axis(axis: Axis, start: float, end: float) -> dict[str, Any]:
    return {**vars(axis), "start": _rounded(start), "end": _rounded(end)}


def _mark(mark: Mark) -> dict[str, Any]:
    return {**vars(mark), "value": _rounded(mark.value), "color": _color(mark.color)}


def _series(series: Series) -> dict[str, Any]:
    numbers = {name: getattr(series, name) for name in ("x", "y", "low", "high")}
    if series.kind == "steps":  # a point in the middle of each
        edges = np.asarray(series.x, dtype=np.float64)
        numbers["x"] = (edges[1:] + edges[:-1]) / 2
    shown = {name: None if values is None else [_rounded(each) for each in values] for name, values in numbers.items()}
    return {**vars(series), **shown, "color": _color(series.color), "labels": None}


def _color(color: Color) -> Any:
    return {"shade": round(color.place, 3)} if isinstance(color, Shade) else color


def _rounded(value: Any) -> float | int | None:
    """Five significant digits, which no screen tells from more; None for what is undefined."""
    if value is None or not math.isfinite(value):
        return None
    if isinstance(value, (int, np.integer)) or float(value).is_integer():
        return int(value)
    return float(f"{value:.{_DIGITS}g}")
