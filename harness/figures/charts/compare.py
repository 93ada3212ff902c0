"""The metrics of a set of configurations: curves over the load or another key, in facets; dots without such a key.

A table of configurations has a row per configuration and load (`harness.studies.comparison.repeats`), with `label`,
`simulated`, the metrics with `<metric>_low` and `<metric>_high`, and in attrs `parameters`, `load` and `fixed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.config.schema.tasks.plotting import AS_USUAL, PlotConfig
from harness.figures.chart import NUM_COLORS, Axis, Chart, Color, Kind, Mark, Panel, Series, Shade, Side, are_far_apart
from harness.figures.drawn_metrics import Metric, by_throughput, has_data, headline_metrics, metric
from harness.figures.labels import number, parameter_label, parameter_title, short_name, value_label
from harness.figures.subtitles import comparison_subtitle
from harness.results.tables import Floats

if TYPE_CHECKING:
    import pandas as pd

_MAX_LINES, _MAX_FACETS, _MAX_ROWS, _MAX_TICKS = NUM_COLORS, 12, 40, 7
_MAX_CURVES = 24  # of a page, where one can be chosen
_NUM_METRICS = {"column": 3, "page": 6}
_NUM_FACETED = {"column": 1, "page": 3}
_NUM_OF_ROWS = {"column": (2, 4), "page": (5, 5)}  # metrics in a row, and in all
_ROW_IN = 0.2
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


def metrics_chart(table: pd.DataFrame, plot: PlotConfig) -> Chart | None:
    """Curves over the load or a key, one per value of the others; dots where there is no such key, or too many curves.

    None where no metric has data.
    """
    wanted = [metric(name) for name in plot.y]
    shown = [each for each in wanted if has_data(table, each)] if wanted else headline_metrics(table)
    if not shown or table.empty:
        return None
    roles = choose_roles(table, plot)
    if roles is None:
        per_row, limit = _NUM_OF_ROWS[plot.width]
        return _rows(table, shown[: len(plot.y) or limit], per_row, plot)
    limit = (_NUM_FACETED if len(_groups(table, roles.facet)) > 1 else _NUM_METRICS)[plot.width]
    return _curves(table, shown[: len(plot.y) or limit], roles, plot)


def metrics_page_chart(table: pd.DataFrame) -> Chart | None:
    """All headline metrics over the load, a curve for each configuration; or dots where no load was swept.

    With very many configurations, those with the highest output throughput."""
    load = table.attrs["load"]
    if table.empty:
        return None
    if not load:
        best = _best(table)
        return _rows(table, [each for each in headline_metrics(table) if has_data(best, each)], 1, AS_USUAL)
    labels = list(dict.fromkeys(table.sort_values("output_throughput", ascending=False)["label"]))[:_MAX_CURVES]
    table = table[table["label"].isin(labels)]
    return _curves(table, headline_metrics(table), Roles(load, table.attrs["parameters"], []), AS_USUAL)


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
    from pandas.api.types import is_bool_dtype, is_numeric_dtype  # imported late, as the page of a run draws no table

    return bool(is_numeric_dtype(values) and not is_bool_dtype(values) and values.notna().all())


def line_colors(table: pd.DataFrame, keys: Sequence[str]) -> dict[str, Color]:
    """By label of the keys: shades that rise with a single number, distinct colours for anything else."""
    labels = [label for label, _ in _groups(table, keys)]
    if len(keys) == 1 and is_numeric(table[keys[0]]) or len(labels) > NUM_COLORS:
        return {label: Shade(place / max(1, len(labels) - 1)) for place, label in enumerate(labels)}
    return {label: place for place, label in enumerate(labels)}


def runs_of(
    rows: pd.DataFrame,
    name: str,
    color: Color,
    x: Floats,
    y: Floats,
    kind: Kind,
    mixed: bool = False,
    bounds: tuple[Floats, Floats] | None = None,
) -> list[Series]:
    """The rows with a known x, in their order: hollow circles are simulated, filled squares are measured, and neither
    share a line, which is dashed for simulated ones where there are both (`mixed`). Crosses mark overloaded runs."""
    found = []
    kinds = rows["simulated"].to_numpy(dtype=bool)
    verdicts = rows["verdict"].astype(str).to_numpy() if "verdict" in rows else None
    for simulated in (True, False):
        at = np.flatnonzero((kinds == simulated) & np.isfinite(x))
        if not len(at):
            continue
        low, high = (None, None) if bounds is None else (bound[at] for bound in bounds)
        texts = {} if verdicts is None else {"load": verdicts[at].tolist()}
        found.append(
            Series(
                name, kind, x[at], y[at], color, dashed=simulated and mixed, low=low, high=high,
                marker="o" if simulated else "s", hollow=simulated, texts=texts,
            )
        )  # fmt: skip
        over = at[:0] if verdicts is None else at[verdicts[at] == "overloaded"]
        found += [Series(name, "points", x[over], y[over], color, marker="x")] if len(over) else []
    return found


def _groups(table: pd.DataFrame, keys: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """Label and rows by value of the keys, in ascending order; one group without a label where there is no key."""
    if not keys:
        return [("", table)]
    groups = table.groupby(list(keys), sort=True, dropna=False, observed=True)
    return [(parameter_label(dict(zip(keys, value, strict=True)), keys), rows) for value, rows in groups]


def _curves(table: pd.DataFrame, shown: Sequence[Metric], roles: Roles, plot: PlotConfig) -> Chart:
    facets = _groups(table, roles.facet)
    keys = [roles.x, *roles.color, *roles.facet]
    x = _x_axis(_X_NAMES.get(roles.x, short_name(roles.x, keys)), table[roles.x], plot)
    title = f"{'Metrics' if len(shown) > 1 else _title(shown[0], plot)} over {plot.name(x.label).partition(',')[0]}"
    notes = [f"colours: {parameter_title(roles.color)}"] if roles.color else []
    notes += _bar_note(table, shown)
    colors = line_colors(table, roles.color)
    panels = []
    for each in shown:
        for facet, rows in facets:
            series = [
                curve
                for label, part in _groups(rows, roles.color)
                for curve in _curve(part, each, roles.x, label, colors[label], table)
            ]
            facts = _facet_name(facet, roles.facet, plot) if facet else ""
            y, marks = _metric_axis("y", each, table, plot), _slo_marks("y", each, table)
            panels.append(Panel(_title(each, plot), x, y, series, marks, facts, ends=bool(roles.color)))
    per_row = len(facets) if 1 < len(facets) <= 3 else 2
    return Chart(title, comparison_subtitle(table, plot, *notes), panels, per_row)


def _curve(part: pd.DataFrame, each: Metric, x: str, label: str, color: Color, table: pd.DataFrame) -> list[Series]:
    at = _positions(part[x], table[x])
    order = np.argsort(at, kind="stable")
    part, mixed = part.iloc[order], table["simulated"].nunique() > 1
    kind: Kind = "line" if is_numeric(table[x]) else "points"
    return runs_of(part, label, color, at[order], each.values(part), kind, mixed, _bounds(part, each))


def _positions(values: pd.Series[Any], all_values: pd.Series[Any]) -> Floats:
    """Numbers as they are; anything else by its place among all values."""
    if is_numeric(all_values):
        return values.to_numpy(dtype=np.float64)
    places = {value: place for place, value in enumerate(sorted(map(value_label, all_values.unique())))}
    return np.array([places[value_label(value)] for value in values], dtype=np.float64)


def _bounds(rows: pd.DataFrame, each: Metric) -> tuple[Floats, Floats] | None:
    low, high = (each.values(rows, end) for end in ("_low", "_high"))
    return (low, high) if np.isfinite(low).any() else None


def _bar_note(table: pd.DataFrame, shown: Sequence[Metric]) -> list[str]:
    return ["bars: 95% interval"] if any(_bounds(table, each) for each in shown) else []


def _title(each: Metric, plot: PlotConfig) -> str:
    """The title of a metric, or the text that stands for its column."""
    given = plot.name(each.column)
    return each.title if given == each.column else given


def _facet_name(label: str, keys: Sequence[str], plot: PlotConfig) -> str:
    name = f"{short_name(keys[0], keys)} {label}" if len(keys) == 1 and "=" not in label else label
    return plot.name(label) if plot.name(label) != label else name


def _slo_marks(axis: Side, each: Metric, table: pd.DataFrame) -> list[Mark]:
    limit = each.slo(table)
    return [] if limit is None else [Mark(f"SLO {number(limit)} {each.unit}", axis, limit, written=True)]


def _metric_axis(which: Side, each: Metric, table: pd.DataFrame, plot: PlotConfig) -> Axis:
    """Logarithmic for latencies that are far apart; otherwise from zero, so that a small difference looks small."""
    values = np.concatenate([each.values(table), each.values(table, "_high"), [each.slo(table) or np.nan]])
    finite = values[np.isfinite(values)]
    is_log = are_far_apart(finite) if plot.log is None else which in plot.log and bool((finite > 0).all())
    ticks = 4 if which == "x" else 6
    if is_log and (each.unit == "ms" or plot.log):
        return Axis(each.unit, log=True, num_ticks=ticks)
    highest = float(finite.max())
    return Axis(each.unit, start=-0.04 * highest, end=highest * 1.12 or 1.0, num_ticks=ticks - 1)


def _x_axis(label: str, values: pd.Series[Any], plot: PlotConfig) -> Axis:
    """Ticks at the values of the runs, where they fit; a logarithmic axis where the values are spread that way."""
    if not is_numeric(values):
        return Axis(label, names=tuple(sorted(map(value_label, values.unique()))))
    distinct = np.unique(values.to_numpy(dtype=np.float64))
    wide = distinct.min() > 0 and distinct.max() >= 8 * distinct.min()
    is_log = bool(distinct.min() > 0 and (wide if plot.log is None else "x" in plot.log))
    return Axis(label, log=is_log, ticks=tuple(distinct.tolist()) if len(distinct) <= _MAX_TICKS else None)


def _best(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that are drawn one below the other: the best throughput on top, of equal ones the lowest tail TTFT."""
    rows = [{**row, "place": place} for place, row in enumerate(table.to_dict("records"))]
    ranked = [row["place"] for group in by_throughput(rows) for row in group]
    return table.iloc[ranked[:_MAX_ROWS]]


def _rows(table: pd.DataFrame, shown: Sequence[Metric], columns: int, plot: PlotConfig) -> Chart:
    """One row per configuration."""
    best = _best(table)
    notes = [f"rows: {parameter_title(table.attrs['parameters'])}", *_bar_note(table, shown)]
    if len(best) < len(table):
        notes.append(f"the {len(best)} rows with the highest output throughput")
    y = Axis(names=tuple(_row_label(row, table) for row in best.to_dict("records")))
    height = _ROW_IN * len(best) + 0.6
    panels = []
    for each in shown:
        values, places, bounds = each.values(best), np.arange(len(best), dtype=np.float64), _bounds(best, each)
        colors = {True: 0, False: 1}
        series = [
            replace(dots, color=colors[dots.hollow])
            for dots in runs_of(best, "", 0, values, places, "points", bounds=bounds)
            if dots.marker != "x"
        ]
        x, marks = _metric_axis("x", each, table, plot), _slo_marks("x", each, table)
        panels.append(Panel(_title(each, plot), x, y, series, marks, height_in=height))
    subtitle = comparison_subtitle(table, plot, *notes)
    per_row = min(columns, len(panels))
    return Chart("Configurations compared", subtitle, panels, per_row, min(per_row, 2))


def _row_label(row: dict[Any, Any], table: pd.DataFrame) -> str:
    load = table.attrs["load"]
    return f"{row['label']} · {value_label(row[load])}" if load else str(row["label"])
