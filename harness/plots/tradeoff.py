"""What throughput costs in latency over a set of configurations: tokens/s per GPU against what each user gets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.config.plotting import PlotConfig
from harness.plots.compare import line_colors
from harness.plots.labels import short_name, value_label
from harness.plots.metrics import interactivity, metric, per_gpu, slo_statistic
from harness.plots.placement import Name, name_points
from harness.plots.style import (
    COLORS,
    GREY,
    INK,
    LIGHT,
    comparison_subtitle,
    fitting,
    head,
    log_axis,
    marker,
    plain_numbers,
    slo_line,
    spread_is_wide,
)
from harness.results.load import ALIKE
from harness.results.metrics import Bools
from harness.results.tables import Floats

_PANEL_IN, _MAX_NAMED = 2.9, 40


@dataclass(frozen=True)
class _Plane:
    """Configurations as points of throughput per GPU (y) over a latency or a speed (x); all arrays [n].

    Attributes:
        cost: falls where the point gets better: the latency, or minus the speed.
        kinds: whether simulated.
        front: whether on the Pareto frontier of its kind.
        limit: SLO in units of x.
    """

    title: str
    unit: str
    x: Floats
    y: Floats
    cost: Floats
    kinds: Bools
    front: Bools
    limit: float | None = None


def draw_frontier(table: pd.DataFrame, plot: PlotConfig) -> Figure | None:
    """Output tokens/s per GPU against tokens/s per user and against tail TTFT; a curve per configuration over the load.

    Points are named: curves where their load is highest, single points one by one, those of the frontier first. None
    where fewer than two points are known, and where all have the same throughput: nothing is traded then.
    """
    table = table.reset_index(drop=True)
    planes = [plane for plane in _planes(table, plot) if np.isfinite(plane.x + plane.y).sum() > 1]
    if not planes or np.nanmax(planes[0].y) <= (1 + ALIKE) * np.nanmin(planes[0].y):
        return None
    load = table.attrs["load"]
    notes = ["grey line: Pareto frontier"]
    if load:
        notes.append(f"numbers on it: {plot.name(short_name(load, [load]))}")
    if table.attrs["parameters"]:
        notes.append(
            "names: " + " · ".join(short_name(name, table.attrs["parameters"]) for name in table.attrs["parameters"])
        )
    subtitle = comparison_subtitle(table, plot, *notes)
    figure, axes = fitting("Throughput against what users get", subtitle, len(planes), plot, _PANEL_IN)
    colors = line_colors(table, ["label"]) if table["label"].nunique() <= len(COLORS) and load else {}
    for panel, plane in zip(axes, planes, strict=True):
        _draw_plane(panel, plane, table, colors)
    figure.draw_without_rendering()  # places the axes, on which the room for names depends
    for panel, plane in zip(axes, planes, strict=True):
        _name_plane(panel, plane, table, colors, plot)
    return figure


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


def _planes(table: pd.DataFrame, plot: PlotConfig) -> list[_Plane]:
    y, kinds = per_gpu(table), table["simulated"].to_numpy(dtype=bool)
    speed, ttft = interactivity(table), metric(f"{slo_statistic(table)}_ttft_ms")
    latency = ttft.values(table)
    return [
        _Plane(
            "Interactivity", "tok/s per user (1 / median TPOT)", speed, y, -speed, kinds, frontier(y, -speed, kinds)
        ),
        _Plane(plot.name(ttft.title), "ms", latency, y, latency, kinds, frontier(y, latency, kinds), ttft.slo(table)),
    ]  # fmt: skip


def _draw_plane(axes: Axes, plane: _Plane, table: pd.DataFrame, colors: dict[str, Any]) -> None:
    mixed = len(set(plane.kinds)) > 1
    for simulated in (True, False):
        front = np.flatnonzero(plane.front & (plane.kinds == simulated))
        front = front[np.argsort(plane.x[front])]
        axes.plot(plane.x[front], plane.y[front], color=LIGHT, linewidth=4, alpha=0.6, zorder=1, label="frontier")
    for _, rows in table.groupby(["label", table["simulated"].astype(bool)], sort=False):
        label, simulated = str(rows["label"].iloc[0]), bool(rows["simulated"].iloc[0])
        at = rows.sort_values(table.attrs["load"]).index if table.attrs["load"] else rows.index
        color = colors.get(label, COLORS[0] if simulated else COLORS[1])
        style = marker(simulated, color)
        axes.plot(plane.x[at], plane.y[at], "--" if simulated and mixed else "-", linewidth=1, markersize=4, **style)
        if "verdict" in rows:
            over = at[(rows.loc[at, "verdict"] == "overloaded").to_numpy()]
            axes.plot(plane.x[over], plane.y[over], linestyle="", marker="x", color=color, markersize=7)
    finite = plane.x[np.isfinite(plane.x + plane.y)]
    if spread_is_wide(finite):
        log_axis(axes, "x", finite.min(), finite.max(), num_ticks=4)
        axes.set_xlim(finite.min() / 1.5, finite.max() * 2.2)
    else:
        axes.set_xlim(0, finite.max() * 1.25)
        axes.locator_params(axis="x", nbins=5)
        plain_numbers(axes, "x")
    axes.set_ylim(0, np.nanmax(plane.y) * 1.15)
    axes.set_xlabel(plane.unit)
    axes.set_ylabel("output tok/s per GPU")
    plain_numbers(axes, "y")
    slo_line(axes, "x", plane.limit, plane.unit)
    head(axes, plane.title, "better: up and " + ("left" if plane.unit == "ms" else "right"))


def _name_plane(axes: Axes, plane: _Plane, table: pd.DataFrame, colors: dict[str, Any], plot: PlotConfig) -> None:
    """Names of curves or points first, then the loads of the points on the frontier."""
    load, points = table.attrs["load"], np.column_stack((plane.x, plane.y))
    ordered = table.sort_values(load, ascending=False) if load else table
    curves = ordered.groupby(["label" if load else ordered.index, ordered["simulated"].astype(bool)], sort=False)
    rows_of = [rows.index.to_numpy() for _, rows in curves]

    def names_at(rows: Iterable[int], text: str, color: Any) -> list[Name]:
        return [Name(plane.x[row], plane.y[row], text, color) for row in rows if np.isfinite(points[row]).all()]

    rows_of.sort(key=lambda rows: not plane.front[rows].any())  # those on the frontier first
    names = [
        names_at(
            rows,
            plot.name(label := table["label"][rows[0]]),
            colors.get(label, INK if plane.front[rows].any() else GREY),
        )
        for rows in rows_of[:_MAX_NAMED]
    ]
    loads = table[load] if load else pd.Series(dtype=float)
    names += [names_at([row], value_label(loads[row]), GREY) for row in np.flatnonzero(plane.front).tolist() if load]
    name_points(axes, names, [points[rows] for rows in rows_of], size=6.5)
