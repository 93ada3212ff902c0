"""The metrics of a set of configurations: curves over the load or another key, in facets; dots without such a key.

A table of configurations has a row per configuration and load (`harness.sweeps.repeats`), with `label`, `simulated`,
the metrics with `<metric>_low` and `<metric>_high`, and in attrs `parameters`, `load` and `fixed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from harness.config.plotting import PlotConfig
from harness.plots.labels import parameter_label, parameter_title, short_name, value_label
from harness.plots.metrics import Metric, has_data, headline_metrics, metric
from harness.plots.placement import Name, name_ends, wrapped_label
from harness.plots.style import (
    COLORS,
    INK,
    WIDTHS_IN,
    comparison_subtitle,
    fitting,
    head,
    log_axis,
    marker,
    panels,
    plain_numbers,
    slo_line,
    spread_is_wide,
)

_MAX_LINES, _MAX_FACETS, _MAX_DOTS, _MAX_TICKS = len(COLORS), 12, 40, 7
_NUM_METRICS = {"column": 3, "page": 6}
_NUM_FACETED = {"column": 1, "page": 3}
_DOT_METRICS = {"column": (2, 4), "page": (5, 5)}  # in a row, and in all
_PANEL_IN, _ROW_IN, _MAX_TICK_CHARACTERS = 2.1, 0.2, 28
_X_NAMES = {
    "arrival.rate": "request rate, 1/s",
    "arrival.concurrency": "concurrency, requests in flight",
    "arrival.time_scale": "time scale of arrivals",
}


@dataclass(frozen=True)
class Roles:
    """What the keys of the configurations are in a figure: x axis, colours and panels."""

    x: str
    color: list[str]
    facet: list[str]


def draw_metrics(table: pd.DataFrame, plot: PlotConfig) -> Figure | None:
    """Curves over the load or a key, one per value of the others; dots where there is no such key, or too many curves.

    None where no metric has data.
    """
    wanted = [metric(name) for name in plot.y]
    shown = [each for each in wanted if has_data(table, each)] if wanted else headline_metrics(table)
    if not shown or table.empty:
        return None
    roles = choose_roles(table, plot)
    return _draw_dots(table, shown, plot) if roles is None else _draw_curves(table, shown, roles, plot)


def choose_roles(table: pd.DataFrame, plot: PlotConfig) -> Roles | None:
    """The keys that `plot` names, and for the others: load on x, one key as colour, more in facets; None for dots."""
    load = table.attrs["load"]
    keys = [*table.attrs["parameters"], *([load] if load else [])]
    numeric = [name for name in keys if is_numeric(table[name])]
    given = plot.color or plot.facet
    x = plot.x or load or max(numeric, key=lambda name: table[name].nunique(), default=None)
    if x is None and (len(keys) >= 3 or given):  # no number, but too many keys for one list
        x = max((key for key in keys if key not in (plot.color, plot.facet)), key=lambda key: table[key].nunique())
    if x is None:
        return None
    rest = [key for key in keys if key not in (x, plot.color, plot.facet)]
    color, facet = [key for key in (plot.color,) if key], [key for key in (plot.facet,) if key]
    if not facet:
        kept = 0 if color else 1
        by_size = sorted(rest, key=lambda key: table[key].nunique())
        facet = [key for key in rest if key in by_size[: max(0, len(rest) - kept)]]
        rest = [key for key in rest if key not in facet]
    roles = Roles(x, [*color, *rest], facet)
    fits = len(_groups(table, roles.color)) <= _MAX_LINES and len(_groups(table, roles.facet)) <= _MAX_FACETS
    return roles if fits or plot.x or given else None


def is_numeric(values: pd.Series[Any]) -> bool:
    return bool(
        pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values) and values.notna().all()
    )


def line_colors(table: pd.DataFrame, keys: Sequence[str]) -> dict[str, Any]:
    """By label of the keys: shades that rise with a single number, distinct colours for anything else."""
    labels = [label for label, _ in _groups(table, keys)]
    if len(keys) == 1 and is_numeric(table[keys[0]]) or len(labels) > len(COLORS):
        shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(labels)))
        return dict(zip(labels, shades, strict=True))
    return dict(zip(labels, COLORS, strict=False))


def _groups(table: pd.DataFrame, keys: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """Label and rows by value of the keys, in ascending order; one group without a label where there is no key."""
    if not keys:
        return [("", table)]
    groups = table.groupby(list(keys), sort=True, dropna=False, observed=True)
    return [(parameter_label(dict(zip(keys, value, strict=True)), keys), rows) for value, rows in groups]


def _draw_curves(table: pd.DataFrame, shown: Sequence[Metric], roles: Roles, plot: PlotConfig) -> Figure:
    facets = _groups(table, roles.facet)
    limit = len(plot.y) or (_NUM_FACETED if len(facets) > 1 else _NUM_METRICS)[plot.width]
    shown = shown[:limit]
    keys = [roles.x, *roles.color, *roles.facet]
    x_name = plot.name(_X_NAMES.get(roles.x, short_name(roles.x, keys)))
    title = f"{'Metrics' if len(shown) > 1 else _title(shown[0], plot)} over {x_name.partition(',')[0]}"
    notes = [f"colours: {parameter_title(roles.color)}"] if roles.color else []
    notes += _bar_note(table, shown)
    per_row = len(facets) if 1 < len(facets) <= 3 else 2
    figure, axes = fitting(
        title, comparison_subtitle(table, plot, *notes), len(shown) * len(facets), plot, _PANEL_IN, per_row
    )
    colors = line_colors(table, roles.color)
    for number, each in enumerate(shown):
        row = axes[number * len(facets) : (number + 1) * len(facets)]
        for panel, (facet, rows) in zip(row, facets, strict=True):
            for label, part in _groups(rows, roles.color):
                _draw_curve(panel, part, each, roles.x, colors[label], table)
            _metric_axis(panel, "y", each, table, plot)
            slo_line(panel, "y", each.slo(table), each.unit)
            head(panel, _title(each, plot), _facet_name(facet, roles.facet, plot) if facet else "")
            _x_axis(panel, x_name, table[roles.x], plot)
    figure.draw_without_rendering()  # places the axes, on which the names depend
    for number, panel in enumerate(axes):
        rows = facets[number % len(facets)][1]
        each = shown[number // len(facets)]
        if roles.color:
            _name_curves(panel, rows, each, roles, colors, plot)
    return figure


def _bar_note(table: pd.DataFrame, shown: Sequence[Metric]) -> list[str]:
    return ["bars: 95% interval"] if any(np.isfinite(each.values(table, "_low")).any() for each in shown) else []


def _title(each: Metric, plot: PlotConfig) -> str:
    """The title of a metric, or the text that stands for its column."""
    given = plot.name(each.column)
    return each.title if given == each.column else given


def _facet_name(label: str, keys: Sequence[str], plot: PlotConfig) -> str:
    name = f"{short_name(keys[0], keys)} {label}" if len(keys) == 1 and "=" not in label else label
    return plot.name(label) if plot.name(label) != label else name


def _positions(values: pd.Series[Any], all_values: pd.Series[Any]) -> np.ndarray:
    """Numbers as they are; anything else by its place among all values."""
    if is_numeric(all_values):
        return values.to_numpy(dtype=np.float64)
    places = {value: place for place, value in enumerate(sorted(map(value_label, all_values.unique())))}
    return np.array([places[value_label(value)] for value in values], dtype=np.float64)


def _draw_curve(axes: Axes, part: pd.DataFrame, each: Metric, x: str, color: Any, table: pd.DataFrame) -> None:
    """Simulated and measured runs never share a line; where there are both, simulated ones are dashed."""
    mixed = table["simulated"].nunique() > 1
    for simulated, rows in part.groupby(part["simulated"].astype(bool)):
        at = _positions(rows[x], table[x])
        order = np.argsort(at, kind="stable")
        at, values = at[order], each.values(rows)[order]
        low, high = (each.values(rows, end)[order] for end in ("_low", "_high"))
        axes.vlines(at, low, high, color=color, linewidth=1, alpha=0.55)
        style = marker(bool(simulated), color)
        line = "" if not is_numeric(table[x]) else "--" if simulated and mixed else "-"
        axes.plot(at, values, linestyle=line or "none", markersize=3.8, **style)
        if "verdict" in rows:
            over = (rows["verdict"] == "overloaded").to_numpy()[order]
            axes.plot(at[over], values[over], linestyle="", marker="x", color=color, markersize=7)


def _name_curves(
    axes: Axes, rows: pd.DataFrame, each: Metric, roles: Roles, colors: dict[str, Any], plot: PlotConfig
) -> None:
    names = []
    for label, part in _groups(rows, roles.color):
        at, values = _positions(part[roles.x], rows[roles.x]), each.values(part)
        known = np.flatnonzero(np.isfinite(values))
        if len(known):
            last = known[np.argmax(at[known])]
            names.append(Name(at[last], values[last], plot.name(label), colors[label]))
    name_ends(axes, names, size=7)


def _metric_axis(axes: Axes, which: str, each: Metric, table: pd.DataFrame, plot: PlotConfig) -> None:
    """Unit and ticks; from zero where linear, so that a small difference looks small."""
    values = np.concatenate([each.values(table), each.values(table, "_high"), [each.slo(table) or np.nan]])
    finite = values[np.isfinite(values)]
    (axes.set_xlabel if which == "x" else axes.set_ylabel)(each.unit)
    is_log = spread_is_wide(finite) if plot.log is None else which in plot.log and bool((finite > 0).all())
    if is_log and (each.unit == "ms" or plot.log):
        low, high = finite.min() / 1.4, finite.max() * 1.4
        log_axis(axes, which, low, high, num_ticks=4 if which == "x" else 6)
    else:
        low, high = -0.04 * finite.max(), finite.max() * 1.12 or 1.0
        axes.locator_params(axis="x" if which == "x" else "y", nbins=3 if which == "x" else 5)
        plain_numbers(axes, which)
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)


def _x_axis(axes: Axes, name: str, values: pd.Series[Any], plot: PlotConfig) -> None:
    """Ticks at the values of the runs, where they fit; a logarithmic axis where the values are spread that way."""
    axes.set_xlabel(name)
    if not is_numeric(values):
        labels = sorted(map(value_label, values.unique()))
        names = [wrapped_label(plot.name(label)) for label in labels]
        crowded = sum(map(len, names)) > _MAX_TICK_CHARACTERS
        axes.set_xticks(range(len(names)), names, rotation=30 if crowded else 0, ha="right" if crowded else "center")
        axes.set_xlim(-0.4, len(names) - 0.6)
        return
    distinct = np.unique(values.to_numpy(dtype=np.float64))
    wide = distinct.min() > 0 and distinct.max() >= 8 * distinct.min()
    if distinct.min() > 0 and (wide if plot.log is None else "x" in plot.log):
        axes.set_xscale("log")
    if len(distinct) <= _MAX_TICKS:
        axes.xaxis.set_major_locator(FixedLocator(distinct.tolist()))
        axes.tick_params(axis="x", labelrotation=45 if distinct.max() >= 10_000 or len(distinct) > 5 else 0)
    axes.xaxis.set_minor_locator(NullLocator())
    plain_numbers(axes, "x")


def _draw_dots(table: pd.DataFrame, shown: Sequence[Metric], plot: PlotConfig) -> Figure:
    """One row per configuration, best output throughput on top."""
    best = table.sort_values("output_throughput", ascending=False, na_position="last").head(_MAX_DOTS)
    per_row, limit = _DOT_METRICS[plot.width]
    shown = shown[: len(plot.y) or limit]
    notes = [f"rows: {parameter_title(table.attrs['parameters'])}", *_bar_note(table, shown)]
    if len(best) < len(table):
        notes.append(f"the {len(best)} rows with the highest output throughput")
    columns = min(len(shown), per_row)
    rows = -(-len(shown) // columns)
    height = rows * (_ROW_IN * len(best) + 0.75)
    width = WIDTHS_IN[plot.width]
    subtitle = comparison_subtitle(table, plot, *notes)
    figure, grid = panels("Configurations compared", subtitle, rows, columns, (width, height), sharey=True)
    labels = [plot.name(_row_label(row, table)) for row in best.to_dict("records")]
    for axes, each in zip(grid.flat, shown, strict=False):
        _draw_dot_panel(axes, best, each)
        _metric_axis(axes, "x", each, table, plot)
        slo_line(axes, "x", each.slo(table), each.unit)
        axes.tick_params(axis="y", length=0)
        head(axes, _title(each, plot))
        axes.set_yticks(np.arange(len(best)), labels, size=7, color=INK)
        axes.set_ylim(len(best) - 0.4, -0.6)
    for spare in list(grid.flat)[len(shown) :]:
        spare.set_visible(False)
    return figure


def _draw_dot_panel(axes: Axes, best: pd.DataFrame, each: Metric) -> None:
    values, places = each.values(best), np.arange(len(best))
    kinds = best["simulated"].astype(bool).to_numpy()
    for simulated, color in ((True, COLORS[0]), (False, COLORS[1])):
        chosen = (kinds == simulated) & np.isfinite(values)
        low, high = (each.values(best, end)[chosen] for end in ("_low", "_high"))
        axes.hlines(places[chosen], low, high, color=color, linewidth=1, alpha=0.55)
        axes.plot(values[chosen], places[chosen], linestyle="", markersize=4.5, **marker(simulated, color))


def _row_label(row: dict[Any, Any], table: pd.DataFrame) -> str:
    load = table.attrs["load"]
    return f"{row['label']} · {value_label(row[load])}" if load else str(row["label"])
