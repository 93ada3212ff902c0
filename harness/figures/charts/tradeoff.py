"""What throughput costs in latency over a set of configurations: tokens/s per GPU against what each user gets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.chart import Axis, Chart, Color, Mark, Name, Panel, Series, are_far_apart
from harness.figures.charts.compare import line_colors, runs_of
from harness.figures.drawn_metrics import interactivity, metric, per_gpu, slo_statistic
from harness.figures.labels import number, parameter_title, short_name, value_label
from harness.figures.subtitles import comparison_subtitle
from harness.results.load import ALIKE
from harness.results.metrics import Bools
from harness.results.tables import Floats

_HEIGHT_IN, _MAX_NAMED = 2.9, 40


@dataclass(frozen=True)
class _Plane:
    """Configurations as points of throughput per GPU (y) over a latency or a speed (x); all arrays [n].

    Attributes:
        better: in which direction of x.
        front: whether on the Pareto frontier of its kind.
        limit: SLO in units of x.
    """

    title: str
    unit: str
    better: str
    x: Floats
    y: Floats
    front: Bools
    limit: float | None = None


def frontier_chart(table: pd.DataFrame, plot: PlotConfig) -> Chart | None:
    """Output tokens/s per GPU against tokens/s per user and against tail TTFT; a curve per configuration over the load.

    Points are named: curves where their load is highest, single points one by one, those of the frontier first. None
    where fewer than two points are known, and where all have the same throughput: nothing is traded then.
    """
    if table.empty:
        return None
    table = table.reset_index(drop=True)
    planes = [plane for plane in _planes(table) if np.isfinite(plane.x + plane.y).sum() > 1]
    if not planes or np.nanmax(planes[0].y) <= (1 + ALIKE) * np.nanmin(planes[0].y):
        return None
    load, parameters = table.attrs["load"], table.attrs["parameters"]
    notes = ["grey line: Pareto frontier"]
    notes += [f"numbers on it: {plot.name(short_name(load, [load]))}"] if load else []
    notes += [f"names: {parameter_title(parameters)}"] if parameters else []
    panels = [_panel(plane, table, line_colors(table, ["label"])) for plane in planes]
    return Chart("Throughput against what users get", comparison_subtitle(table, plot, *notes), panels)


def frontier(throughput: Floats, cost: Floats, kinds: Bools) -> Bools:
    """bool[n]: points for which no other of their kind has at least the throughput at lower cost, or more at the same.

    Of equal points the first counts. Undefined values are on no frontier. Simulated and measured runs do not compete.
    """
    found = np.zeros(len(throughput), dtype=bool)
    best = {True: np.inf, False: np.inf}
    for point in np.lexsort((cost, -throughput)):
        kind = bool(kinds[point])
        if np.isfinite(throughput[point]) and cost[point] < best[kind]:
            found[point] = True
            best[kind] = cost[point]
    return found


def _planes(table: pd.DataFrame) -> list[_Plane]:
    y, kinds = per_gpu(table), table["simulated"].to_numpy(dtype=bool)
    speed, ttft = interactivity(table), metric(f"{slo_statistic(table)}_ttft_ms")
    latency = ttft.values(table)
    unit = "tok/s per user (1 / median TPOT)"
    return [
        _Plane("Interactivity", unit, "right", speed, y, frontier(y, -speed, kinds)),
        _Plane(ttft.title, "ms", "left", latency, y, frontier(y, latency, kinds), ttft.slo(table)),
    ]


def _panel(plane: _Plane, table: pd.DataFrame, colors: dict[str, Color]) -> Panel:
    series, kinds = [], table["simulated"].to_numpy(dtype=bool)
    for simulated in (True, False):
        front = np.flatnonzero(plane.front & (kinds == simulated))
        front = front[np.argsort(plane.x[front])]
        if len(front):
            series.append(Series("frontier", "line", plane.x[front], plane.y[front], "line", width=4))
    mixed = len(set(kinds)) > 1
    for (label, _), rows in table.groupby(["label", table["simulated"].astype(bool)], sort=False):
        at = rows.sort_values(table.attrs["load"]).index if table.attrs["load"] else rows.index
        found = runs_of(table.loc[at], str(label), colors[str(label)], plane.x[at], plane.y[at], "line", mixed)
        series += [replace(curve, width=1) for curve in found]
    finite = plane.x[np.isfinite(plane.x + plane.y)]
    x = Axis(plane.unit, start=0, end=finite.max() * 1.25)
    if are_far_apart(finite):
        x = Axis(plane.unit, log=True, start=finite.min() / 1.5, end=finite.max() * 2.2, num_ticks=4)
    y = Axis("output tok/s per GPU", start=0, end=np.nanmax(plane.y) * 1.15)
    limits = [] if plane.limit is None else [Mark(f"SLO {number(plane.limit)} ms", "x", plane.limit, written=True)]
    facts, names = f"better: up and {plane.better}", _names(plane, table, colors)
    return Panel(plane.title, x, y, series, limits, facts, names=names, height_in=_HEIGHT_IN)


def _names(plane: _Plane, table: pd.DataFrame, colors: dict[str, Color]) -> list[list[Name]]:
    """Names of curves or points first, then the loads of the points on the frontier."""
    load, points = table.attrs["load"], np.column_stack((plane.x, plane.y))
    ordered = table.sort_values(load, ascending=False) if load else table
    curves = ordered.groupby(["label" if load else ordered.index, ordered["simulated"].astype(bool)], sort=False)
    rows_of = [rows.index.to_numpy() for _, rows in curves]

    def names_at(rows: Iterable[int], text: str, color: Color) -> list[Name]:
        return [Name(plane.x[row], plane.y[row], text, color) for row in rows if np.isfinite(points[row]).all()]

    rows_of.sort(key=lambda rows: not plane.front[rows].any())  # those on the frontier first
    names = []
    for rows in rows_of[:_MAX_NAMED]:
        label = str(table["label"][rows[0]])
        names.append(names_at(rows, label, colors[label]))
    if load:
        names += [
            names_at([row], value_label(table[load][row]), "grey") for row in np.flatnonzero(plane.front).tolist()
        ]
    return names
