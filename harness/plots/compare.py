"""The headline metrics of a set of runs: lines over a numeric parameter, sorted dots over any other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from harness.plots.style import (
    COLORS,
    INK,
    comparison_subtitle,
    head,
    legend,
    log_axis,
    marker,
    number,
    panels,
    plain_numbers,
    spread_is_wide,
)

_MAX_LINES = len(COLORS)
_MAX_DOTS = 40
_MAX_TICKS = 9


@dataclass(frozen=True)
class Metric:
    """A column of the combined table as it is drawn: values are multiplied by `scale` to be in `unit`."""

    column: str
    title: str
    unit: str
    scale: float = 1.0


def draw_metrics(runs: pd.DataFrame, parameters: Sequence[str]) -> Figure | None:
    """Lines over a numeric parameter, one per value of a second one; sorted dots for anything else."""
    alive = runs[runs["status"] != "failed"]
    shown = [metric for metric in headline_metrics(list(runs.columns)) if _has_data(alive, metric)]
    if not shown:
        return None
    axis = _line_parameters(alive, parameters)
    if axis is None:
        return _draw_dots(runs, alive, parameters, shown)
    return _draw_lines(runs, alive, shown, *axis)


def headline_metrics(columns: Sequence[str]) -> list[Metric]:
    """The metrics that are compared; tail latencies are p99, or the highest percentile in the summaries."""
    tail = tail_percentile(columns)
    wanted = [
        Metric("output_throughput", "Output throughput", "tok/s"),
        Metric("median_ttft_ms", "Median TTFT", "ms"),
        Metric(f"{tail}_ttft_ms", f"{tail} TTFT", "ms"),
        Metric("median_tpot_ms", "Median TPOT", "ms"),
        Metric(f"{tail}_tpot_ms", f"{tail} TPOT", "ms"),
        Metric("mean_kv_cache_usage", "Mean KV use", "% of blocks", 100.0),
        Metric("preemptions", "Preemptions", "events"),
        Metric("prefix_cache_hit_rate", "Prefix cache hits", "% of prompt tokens", 100.0),
    ]
    return [metric for metric in wanted if metric.column in columns]


def tail_percentile(columns: Sequence[str]) -> str:
    """p99 where there is one, otherwise the highest percentile up to 100."""
    found = [match[1] for column in columns if (match := re.fullmatch(r"p([\d.]+)_ttft_ms", column))]
    return "p99" if "99" in found or not found else f"p{max(found, key=float)}"


def parameter_title(parameters: Sequence[str]) -> str:
    """Names of the parameters in a `parameter_label`."""
    return " · ".join(short_name(name, parameters) for name in parameters) or "run"


def parameter_label(row: Mapping[Any, Any], parameters: Sequence[str]) -> str:
    """The values of the parameters of a run, such as `16 · mixed`; its name without parameters."""
    return " · ".join(value_label(row[name]) for name in parameters) or str(row["run"])


def short_name(parameter: str, parameters: Sequence[str]) -> str:
    """The last part of a dotted name, or its group where the last part is `kind`, `name` or not unique."""
    group, _, last = parameter.rpartition(".")
    if group and last in ("kind", "name"):
        return group
    alone = sum(name.rpartition(".")[2] == last for name in parameters) == 1
    return last if alone else parameter


def value_label(value: Any) -> str:
    if value is None or value != value:
        return "unset"
    if isinstance(value, (float, np.floating)):
        return number(float(value))
    return str(value)


def is_numeric(values: pd.Series[Any]) -> bool:
    return bool(
        pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values) and values.notna().all()
    )


def _has_data(runs: pd.DataFrame, metric: Metric) -> bool:
    """Whether a metric is defined, and not 0, for at least one run; others get no panel."""
    values = _values(runs, metric)
    return bool(np.isfinite(values).any()) and bool(np.nan_to_num(values).any())


def _values(runs: pd.DataFrame, metric: Metric) -> np.ndarray:
    return pd.to_numeric(runs[metric.column]).to_numpy(dtype=np.float64) * metric.scale


def _line_parameters(runs: pd.DataFrame, parameters: Sequence[str]) -> tuple[str, str | None] | None:
    """(x, one line each), when one or two parameters vary, x is a number and the lines are few enough to tell apart."""
    numeric = [name for name in parameters if is_numeric(runs[name])]
    if not 1 <= len(parameters) <= 2 or not numeric:
        return None
    x = max(numeric, key=lambda name: runs[name].nunique())
    others = [name for name in parameters if name != x]
    if not others:
        return x, None
    return (x, others[0]) if runs[others[0]].nunique(dropna=False) <= _MAX_LINES else None


def _draw_lines(runs: pd.DataFrame, alive: pd.DataFrame, shown: Sequence[Metric], x: str, line: str | None) -> Figure:
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    names = [x] if line is None else [x, line]
    title = "Metrics by " + " and ".join(short_name(name, names) for name in names)
    figure, grid = panels(title, comparison_subtitle(runs), rows, columns, (2.7 * columns + 0.9, 2.35 * rows + 0.2))
    lines = _split(alive, line)
    colors = _line_colors(alive, line, len(lines))
    mixed = alive["simulated"].nunique() > 1
    for axes, metric in zip(grid.flat, shown, strict=False):
        for (_, part), color in zip(lines, colors, strict=True):
            _draw_line(axes, part.sort_values(x), metric, x, color, mixed)
        _metric_axis(axes, "y", metric, _values(alive, metric))
        head(axes, metric.title)
        _parameter_axis(axes, short_name(x, names), alive[x].to_numpy(dtype=np.float64))
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    if line is not None:
        handles = [
            Line2D([], [], color=color, label=value_label(value))
            for (value, _), color in zip(lines, colors, strict=True)
        ]
        legend(figure, handles, short_name(line, names))
    return figure


def _split(runs: pd.DataFrame, line: str | None) -> list[tuple[Any, pd.DataFrame]]:
    if line is None:
        return [(None, runs)]
    return list(runs.groupby(line, sort=True, dropna=False, observed=True))


def _line_colors(runs: pd.DataFrame, line: str | None, count: int) -> list[Any]:
    """Shades that rise with a number; distinct colours for names."""
    if line is None or not is_numeric(runs[line]):
        return list(COLORS[:count])
    return list(matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, count)))


def _draw_line(axes: Axes, part: pd.DataFrame, metric: Metric, x: str, color: Any, mixed: bool) -> None:
    """Simulated and measured runs never share a line; where there are both, simulated ones are dashed."""
    for simulated, runs in part.groupby(part["simulated"].astype(bool)):
        style = marker(bool(simulated), color)
        axes.plot(
            runs[x].to_numpy(), _values(runs, metric), "--" if simulated and mixed else "-", markersize=4.5, **style
        )


def _metric_axis(axes: Axes, which: str, metric: Metric, values: np.ndarray) -> None:
    """Unit and ticks; from zero where linear, so that a small difference looks small."""
    finite = values[np.isfinite(values)]
    (axes.set_xlabel if which == "x" else axes.set_ylabel)(metric.unit)
    if metric.unit == "ms" and spread_is_wide(finite):
        low, high = finite.min() / 1.4, finite.max() * 1.4
        log_axis(axes, which, low, high, num_ticks=4 if which == "x" else 7)
    else:
        low, high = -0.04 * finite.max(), finite.max() * 1.12
        axes.locator_params(axis="x" if which == "x" else "y", nbins=4)
        plain_numbers(axes, which)
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)


def _parameter_axis(axes: Axes, name: str, values: np.ndarray) -> None:
    """Ticks at the values of the runs, where they fit; a logarithmic axis where the values are spread that way."""
    axes.set_xlabel(name)
    distinct = np.unique(values)
    if distinct.min() > 0 and distinct.max() >= 8 * distinct.min():
        axes.set_xscale("log")
    if len(distinct) <= _MAX_TICKS:
        axes.xaxis.set_major_locator(FixedLocator(distinct.tolist()))
        axes.xaxis.set_minor_locator(NullLocator())
        crowded = len(distinct) > 5 or distinct.max() >= 10_000
        axes.tick_params(axis="x", labelrotation=45 if crowded else 0)
    plain_numbers(axes, "x")


def _draw_dots(runs: pd.DataFrame, alive: pd.DataFrame, parameters: Sequence[str], shown: Sequence[Metric]) -> Figure:
    """One row per run, best output throughput on top."""
    best = alive.sort_values("output_throughput", ascending=False, na_position="last").head(_MAX_DOTS)
    notes = [f"rows: {parameter_title(parameters)}"]
    if len(best) < len(alive):
        notes.append(f"the {len(best)} runs with the highest output throughput")
    size = (1.6 * len(shown) + 1.6, 0.2 * len(best) + 0.9)
    figure, grid = panels("Runs compared", comparison_subtitle(runs, *notes), 1, len(shown), size, sharey=True)
    places = np.arange(len(best))
    for axes, metric in zip(grid[0], shown, strict=True):
        values = _values(best, metric)
        for simulated, color in ((True, COLORS[0]), (False, COLORS[1])):
            chosen = (best["simulated"].astype(bool) == simulated).to_numpy() & np.isfinite(values)
            axes.plot(values[chosen], places[chosen], linestyle="", markersize=4.5, **marker(simulated, color))
        _metric_axis(axes, "x", metric, _values(alive, metric))
        axes.tick_params(axis="x", labelsize=7.5)
        axes.tick_params(axis="y", length=0)
        head(axes, metric.title)
    labels = [parameter_label(row, parameters) for row in best.to_dict("records")]
    grid[0][0].set_yticks(places, labels, size=7.5, color=INK)
    grid[0][0].set_ylim(len(best) - 0.4, -0.6)
    return figure
