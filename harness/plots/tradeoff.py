"""What throughput costs in latency over a set of runs: the Pareto frontier, and whole latency distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.plots.compare import parameter_label, parameter_title, tail_percentile
from harness.plots.latency import CURVE_PERCENTILES, NAMES, seconds_axis, share_axis
from harness.plots.style import (
    COLORS,
    GREY,
    INK,
    LIGHT,
    comparison_subtitle,
    head,
    legend,
    log_axis,
    marker,
    panels,
    plain_numbers,
    spread_is_wide,
    wrapped,
)
from harness.results.metrics import Bools
from harness.results.tables import Floats

_MAX_NAMED = 12
_LABEL_SIZE = np.array([0.035, 0.05])  # of a number in the figure, as shares of the axes


def draw_pareto(runs: pd.DataFrame, parameters: Sequence[str]) -> Figure | None:
    """Output throughput against tail TTFT and tail TPOT; a line joins the Pareto-optimal runs of a kind."""
    alive = runs[runs["status"] != "failed"].reset_index(drop=True)
    tail = tail_percentile(list(runs.columns))
    columns = [name for name in (f"{tail}_ttft_ms", f"{tail}_tpot_ms") if name in alive]
    throughput = alive["output_throughput"].to_numpy(dtype=np.float64)
    latencies = [alive[name].to_numpy(dtype=np.float64) for name in columns]
    kinds = alive["simulated"].to_numpy(dtype=bool)
    planes = {
        name.removesuffix("_ms").replace("_", " "): _Plane(
            throughput, values, kinds, frontier(throughput, values, kinds)
        )
        for name, values in zip(columns, latencies, strict=True)
        if np.isfinite(values + throughput).any()
    }
    if not planes or len(alive) < 2:
        return None
    named = _named(list(planes.values()))
    widths = [4.2] * len(planes) + [2.6]
    subtitle = comparison_subtitle(runs, "frontiers are joined; lower right is better")
    size = (sum(widths), 3.6)
    figure, grid = panels("Throughput against latency", subtitle, 1, len(widths), size, width_ratios=widths)
    for axes, (name, plane) in zip(grid[0], planes.items(), strict=False):
        _draw_plane(axes, plane, named)
        statistic, metric = name.split()
        axes.set_ylabel(f"{statistic} {metric.upper()}, ms")
        head(axes, f"Output throughput against {statistic} {metric.upper()}")
    _draw_key(grid[0][-1], alive, parameters, named)
    return figure


def frontier(throughput: Floats, latency: Floats, kinds: Bools) -> Bools:
    """bool[n]: runs for which no other of their kind has at least the throughput at lower latency, or more at the same.

    Of equal runs the first counts. Undefined values are on no frontier. Simulated and measured runs do not compete.
    """
    found = np.zeros(len(throughput), dtype=bool)
    best = {True: np.inf, False: np.inf}
    for run in np.lexsort((latency, -throughput)):
        kind = bool(kinds[run])
        if np.isfinite(throughput[run]) and latency[run] < best[kind]:
            found[run] = True
            best[kind] = latency[run]
    return found


@dataclass(frozen=True)
class _Plane:
    """Runs as points; all arrays [n]. kinds: whether simulated. front: whether on the frontier of their kind."""

    throughput: Floats
    latency: Floats
    kinds: Bools
    front: Bools

    def is_log(self) -> bool:
        return spread_is_wide(self.latency)

    def places(self) -> Floats:
        """float64[n, 2]: where the points are drawn, as shares of the width and height of the axes."""
        height = np.log(self.latency) if self.is_log() else self.latency
        span = np.nanmax(height) - (np.nanmin(height) if self.is_log() else 0)
        return np.column_stack((self.throughput / np.nanmax(self.throughput), height / span))


def draw_curves(
    runs: pd.DataFrame, parameters: Sequence[str], curves: Mapping[str, Mapping[str, Floats]]
) -> Figure | None:
    """Distributions of all runs on top of each other; with many runs, some of the TTFT frontier are in colour."""
    alive = runs[(runs["status"] != "failed") & runs["run"].isin([run for run, found in curves.items() if found])]
    alive = alive.reset_index(drop=True)
    names = [name for name in NAMES if any(name in curves[run] for run in alive["run"])]
    if not names:
        return None
    colors = _curve_colors(alive)
    notes = [f"in grey: the other {len(alive) - len(colors)} runs"] if len(alive) > len(colors) else []
    size = (3.2 * len(names) + 2.6, 3.1)
    figure, grid = panels("Latency distributions compared", comparison_subtitle(runs, *notes), 1, len(names), size)
    simulated = alive["simulated"].to_numpy(dtype=bool)
    for axes, name in zip(grid[0], names, strict=True):
        drawn = {number: curves[run][name] for number, run in enumerate(alive["run"]) if name in curves[run]}
        scale = seconds_axis(axes, list(drawn.values()))
        share_axis(axes)
        for number, curve in drawn.items():
            front = number in colors
            style: dict[str, Any] = {"color": colors.get(number, LIGHT), "linewidth": 1.5 if front else 0.6}
            dashes = "--" if simulated[number] and not simulated.all() else "-"
            axes.plot(curve * scale, CURVE_PERCENTILES / 100, dashes, zorder=3 if front else 2, **style)
        head(axes, NAMES[name])
    grid[0][0].set_ylabel("share of requests")
    labels = [parameter_label(row, parameters) for row in alive.to_dict("records")]
    handles = [Line2D([], [], color=color, label=labels[number]) for number, color in colors.items()]
    legend(figure, handles, parameter_title(parameters))
    return figure


def _named(planes: Sequence[_Plane]) -> list[int]:
    """Rows to be numbered, by throughput: rows on a frontier whose numbers would not overlap; if these are too many,
    evenly spaced ones with both ends."""
    rows: list[int] = []
    throughput = planes[0].throughput
    on_any = np.logical_or.reduce([plane.front for plane in planes])
    places = [plane.places() for plane in planes]
    for row in np.argsort(throughput)[::-1]:
        if on_any[row] and any(
            plane.front[row] and not any(plane.front[near] and _close(place[row], place[near]) for near in rows)
            for plane, place in zip(planes, places, strict=True)
        ):
            rows.insert(0, int(row))
    if len(rows) <= _MAX_NAMED:
        return rows
    return [rows[round(place)] for place in np.linspace(0, len(rows) - 1, _MAX_NAMED)]


def _close(one: Floats, other: Floats) -> bool:
    return bool((np.abs(one - other) < _LABEL_SIZE).all())


def _draw_plane(axes: Axes, plane: _Plane, named: Sequence[int]) -> None:
    x, y = plane.throughput, plane.latency
    for simulated, color in ((True, COLORS[0]), (False, COLORS[1])):
        same_kind = plane.kinds == simulated
        front = np.flatnonzero(plane.front & same_kind)
        front = front[np.argsort(x[front])]
        others = same_kind & ~plane.front
        axes.plot(x[others], y[others], linestyle="", markersize=4.5, zorder=1, **marker(simulated, LIGHT))
        dashes = "--" if simulated and not plane.kinds.all() else "-"
        axes.plot(x[front], y[front], dashes, linewidth=1, markersize=5.5, zorder=3, **marker(simulated, color))
    finite = y[np.isfinite(y)]
    if plane.is_log():
        log_axis(axes, "y", finite.min(), finite.max())
    else:
        axes.set_ylim(0, finite.max() * 1.1)
        plain_numbers(axes, "y")
    axes.set_xlabel("output throughput, tok/s")
    axes.set_xlim(0, np.nanmax(x) * 1.1)
    plain_numbers(axes, "x")
    for number, row in enumerate(named, start=1):
        if plane.front[row]:
            axes.annotate(str(number), (x[row], y[row]), (5, -3), textcoords="offset points", va="top", size=8)


def _draw_key(axes: Axes, runs: pd.DataFrame, parameters: Sequence[str], named: Sequence[int]) -> None:
    axes.set_axis_off()
    labels = [parameter_label(row, parameters) for row in runs.to_dict("records")]
    title = wrapped(parameter_title(parameters))
    lines = [f"{number}   {labels[row]}" for number, row in enumerate(named, start=1)]
    options: dict[str, Any] = {"transform": axes.transAxes, "va": "top", "size": 8, "in_layout": False}
    axes.text(0, 1, title, color=GREY, linespacing=1.3, **options)
    below = 1 - 0.06 * (title.count("\n") + 1.4)
    axes.text(0, below, "\n".join(lines), color=INK, linespacing=1.5, **options)


def _curve_colors(runs: pd.DataFrame) -> dict[int, Any]:
    """Colour by row: all of a few runs, otherwise some on the frontier of throughput and tail TTFT, by throughput."""
    if len(runs) <= len(COLORS):
        return dict(zip(range(len(runs)), COLORS, strict=False))
    throughput = runs["output_throughput"].to_numpy(dtype=np.float64)
    tail = runs[f"{tail_percentile(list(runs.columns))}_ttft_ms"].to_numpy(dtype=np.float64)
    kinds = runs["simulated"].to_numpy(dtype=bool)
    rows = _named([_Plane(throughput, tail, kinds, frontier(throughput, tail, kinds))])[-len(COLORS) :]
    return dict(zip(rows, matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(rows))), strict=True))
