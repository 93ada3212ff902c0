"""Distributions of latencies: how many requests are within a time, and the tail: how many take longer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.config.plotting import PlotConfig
from harness.plots.compare import line_colors
from harness.plots.labels import parameter_title, short_name, value_label
from harness.plots.style import (
    COLORS,
    WIDTHS_IN,
    color_legend,
    comparison_subtitle,
    duration_label,
    head,
    log_axis,
    panels,
    plain_numbers,
    run_subtitle,
    slo_line,
    spread_is_wide,
)
from harness.results.metrics import Window
from harness.results.tables import Floats, Gaps, RunResult

# enough points for a smooth line, and evenly spaced ones in the logarithm of the tail
CURVE_PERCENTILES = np.concatenate((np.linspace(0, 98, 393)[:-1], 100 - np.geomspace(2, 1e-3, 90), [100.0]))
NAMES = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "itl": "Inter-token latency (ITL)",
    "e2el": "End-to-end latency (E2EL)",
}
_CDF_IN, _TAIL_IN = 1.75, 1.75
_LEAST_TAIL = 1e-4
_P99 = int(np.searchsorted(CURVE_PERCENTILES, 99))


def draw_latency(result: RunResult, summary: Mapping[str, Any], plot: PlotConfig) -> Figure | None:
    """Two panels per latency that at least one finished request has, its distribution and its tail, with SLO lines;
    None where there is none."""
    pooled = {
        name: Gaps(seconds, np.ones(len(seconds), dtype=np.int64))
        for name, seconds in _counted(result.requests, summary).items()
    }
    if not pooled:
        return None
    if result.gaps.count:
        pooled["itl"] = result.gaps
    names = [name for name in NAMES if name in pooled]
    title = "Latency distributions, and their tails"
    figure, grid = _pairs(title, run_subtitle(summary), len(names), plot)
    for (whole, tail), name in zip(grid, names, strict=True):
        facts = _draw_pair(whole, tail, name, pooled[name], _limit_s(summary, name))
        head(whole, _short_name(name, plot), facts)
    _name_rows(grid, plot)
    return figure


def draw_distributions(
    table: pd.DataFrame, curves: Mapping[str, Mapping[str, Floats]], plot: PlotConfig
) -> Figure | None:
    """The distributions and tails of a table of configurations, at the highest load that none is overloaded at.

    curves: by label, and by load where one was swept (`curve_key`), the latencies with their `CURVE_PERCENTILES` in s.
    With more configurations than colours, those with the highest output throughput.
    """
    load, note = table.attrs["load"], []
    if load:
        at = _common_load(table)
        table, note = table[table[load] == at], [f"at {short_name(load, [load])} {value_label(at)}"]
    best = table.sort_values("output_throughput", ascending=False).head(len(COLORS))
    keys = {str(row["label"]): curve_key(row, load) for row in best.to_dict("records")}
    drawn = {label: curves[key] for label, key in keys.items() if curves.get(key)}
    names = [name for name in NAMES if any(name in found for found in drawn.values())]
    if not names:
        return None
    if len(best) < len(table):
        note.append(f"the {len(best)} of {len(table)} configurations with the highest output throughput")
    note += [f"colours: {parameter_title(table.attrs['parameters'])}"] if table.attrs["parameters"] else []
    figure, grid = _pairs("Latencies compared", comparison_subtitle(table, plot, *note), len(names), plot)
    colors = line_colors(table[table["label"].isin(list(drawn))], ["label"])
    dashed = dict(zip(best["label"], best["simulated"].astype(bool) & (not best["simulated"].all()), strict=True))
    for (whole, tail), name in zip(grid, names, strict=True):
        some = [found[name] for found in drawn.values() if name in found]
        limits = best[f"slo_{name}_ms"].dropna().unique().tolist() if f"slo_{name}_ms" in best else []
        limit = float(limits[0]) / 1e3 if len(limits) == 1 else None
        for axes in (whole, tail):
            scale, unit = seconds_axis(axes, [*some, *([np.array([limit])] if limit else [])])
            for label, found in drawn.items():
                style = {"color": colors[label], "linestyle": "--" if dashed[label] else "-", "linewidth": 1.2}
                _draw_curve(axes, found.get(name, np.array([])) * scale, axes is tail, style)
            slo_line(axes, "x", limit and limit * scale, unit if axes is whole else "")
        share_axis(whole)
        tail_axis(tail, _LEAST_TAIL * 10)
        head(whole, _short_name(name, plot))
    _name_rows(grid, plot)
    tails = {label: next(iter(found.values()))[_P99] for label, found in drawn.items()}
    ordered = sorted(drawn, key=lambda label: -tails[label])  # as their tails are, from top to bottom
    color_legend(figure, {plot.name(label): colors[label] for label in ordered}, plot)
    return figure


def curve_key(row: Mapping[Any, Any], load: str | None) -> str:
    """The key of a configuration at its load in a mapping of curves."""
    return f"{row['label']} at {row[load]}" if load else str(row["label"])


def latency_curves(requests: pd.DataFrame, summary: Mapping[Any, Any]) -> dict[str, Floats]:
    """By latency (no ITL): its `CURVE_PERCENTILES` in s, over the requests that the summary counts."""
    return {name: np.percentile(values, CURVE_PERCENTILES) for name, values in _counted(requests, summary).items()}


def share_axis(axes: Axes) -> None:
    axes.set_ylim(0, 1.03)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])


def tail_axis(axes: Axes, least: float) -> None:
    """A logarithmic axis of the share that takes longer, from `least` to 1."""
    log_axis(axes, "y", least, 1.0, num_ticks=7)
    axes.set_ylim(least, 1.15)
    shares = [share for share in (1.0, 0.1, 0.01, 0.001, 1e-4, 1e-5) if share >= least]
    axes.set_yticks(shares, [f"{share * 100:g}%" for share in shares])


def seconds_axis(axes: Axes, curves: Sequence[Floats], *, log: bool | None = None) -> tuple[float, str]:
    """Set up x for curves in s: logarithmic as `log` says, or where they are spread wide; never with a curve that
    reaches 0. Returns units per second and unit, ms or s."""
    everything = np.concatenate(list(curves))
    scale, unit = (1.0, "s") if float(np.median(everything)) >= 1 else (1e3, "ms")
    low, high = everything.min() * scale, everything.max() * scale
    axes.set_xlabel(unit)
    if spread_is_wide(everything) if log is None else log and low > 0:
        log_axis(axes, "x", low, high, num_ticks=3)
        pad = math.exp(0.06 * math.log(high / low))
        axes.set_xlim(low / pad, high * pad)
    else:
        pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        axes.locator_params(axis="x", nbins=3)
        plain_numbers(axes, "x")
        axes.set_xlim(low - pad, high + pad)
    return scale, unit


def _counted(requests: pd.DataFrame, summary: Mapping[Any, Any]) -> dict[str, Floats]:
    """By latency: its values in s, of finished requests inside the window. Latencies without values are left out."""
    # both are undefined where no request ever arrived, and a window of NaN cuts nothing
    start, end = (np.float64(summary[key]) for key in ("window_start_s", "window_end_s"))
    inside = Window(float(start), float(end)).contains(requests["arrival_time"].to_numpy(dtype=np.float64))
    counted = requests[inside & (requests["status"] == "finished").to_numpy()]
    values = {name: counted[name].dropna().to_numpy(dtype=np.float64) for name in NAMES if name != "itl"}
    return {name: seconds for name, seconds in values.items() if len(seconds)}


def _common_load(table: pd.DataFrame) -> Any:
    """The highest load that every configuration has and none is overloaded at; the middle one without verdicts."""
    load = table.attrs["load"]
    counts = table.groupby(load)["label"].nunique()
    common = sorted(counts[counts == counts.max()].index)
    if "verdict" not in table or table["verdict"].isna().all():
        return common[len(common) // 2]
    over = set(table.loc[table["verdict"] == "overloaded", load])
    return max((each for each in common if each not in over), default=common[0])


def _pairs(title: str, subtitle: str, count: int, plot: PlotConfig) -> tuple[Figure, list[tuple[Axes, Axes]]]:
    """A panel for the distribution and one for the tail of each of `count` latencies: below each other on a page,
    beside each other in a column."""
    width = WIDTHS_IN[plot.width]
    if plot.width == "page":
        figure, grid = panels(title, subtitle, 2, count, (width, _CDF_IN + _TAIL_IN), sharex="col")
        return figure, [(grid[0, column], grid[1, column]) for column in range(count)]
    figure, grid = panels(title, subtitle, count, 2, (width, 1.75 * count))
    for axes in grid.flat:
        axes.tick_params(labelsize=6.5)
    return figure, [(grid[row, 0], grid[row, 1]) for row in range(count)]


def _name_rows(grid: Sequence[tuple[Axes, Axes]], plot: PlotConfig) -> None:
    if plot.width == "page":
        grid[0][0].set_ylabel("share within")
        grid[0][1].set_ylabel("share beyond")
    for whole, tail in grid:
        if plot.width == "page":
            whole.set_xlabel("")
        else:
            head(tail, "share beyond")


def _short_name(name: str, plot: PlotConfig) -> str:
    return plot.name(NAMES[name].partition("(")[2].rstrip(")"))


def _draw_pair(whole: Axes, tail: Axes, name: str, values: Gaps, limit_s: float | None) -> str:
    """Draws the distribution and the tail of a latency; returns its percentiles and how many values are within it."""
    *points, p50, p99 = values.percentiles([*CURVE_PERCENTILES, 50, 99]).tolist()
    curve = np.array(points)
    marked = [np.array([limit_s])] if limit_s is not None else []
    for axes in (whole, tail):
        scale, _ = seconds_axis(axes, [curve, *marked])
        _draw_curve(axes, curve * scale, axes is tail, {"color": COLORS[0]})
        slo_line(axes, "x", limit_s and limit_s * scale)
    for label, share, value in (("p50", 0.5, p50), ("p99", 0.99, p99)):
        for axes, at in ((whole, share), (tail, 1 - share)):
            axes.plot([value * scale], [at], "o", color=COLORS[1], markersize=4, zorder=3, clip_on=False)
        # below and to the right of a point on a rising curve, and to the right on a falling one, is room
        for axes, at, below in ((whole, share, True), (tail, 1 - share, False)):
            axes.annotate(
                label, (value * scale, at), (5, -3 if below else 0), textcoords="offset points",
                va="top" if below else "center", color=COLORS[1], size=7,
            )  # fmt: skip
    share_axis(whole)
    tail_axis(tail, max(min(0.5 / values.count, 0.005), _LEAST_TAIL / 10))
    counted = f"{values.count:,} " + ("gap" if name == "itl" else "request") + ("" if values.count == 1 else "s")
    within = "" if limit_s is None else f"{_share_within(values, limit_s):.1%} within SLO {duration_label(limit_s)}"
    return f"p50 {duration_label(p50)}, p99 {duration_label(p99)}\n{within or counted}"


def _share_within(values: Gaps, limit_s: float) -> float:
    return float(values.weights[values.values <= limit_s].sum() / values.count)


def _limit_s(summary: Mapping[str, Any], name: str) -> float | None:
    limit = summary.get(f"slo_{name}_ms")
    return None if limit is None else float(limit) / 1e3


def _draw_curve(axes: Axes, curve: Floats, is_tail: bool, style: dict[str, Any]) -> None:
    if len(curve):
        shares = CURVE_PERCENTILES / 100
        axes.plot(curve[: -1 if is_tail else None], (1 - shares)[:-1] if is_tail else shares, **style)
