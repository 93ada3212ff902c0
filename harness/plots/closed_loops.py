"""Simulated against measured latencies of many closed-loop benchmarks."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.config.plotting import PlotConfig
from harness.plots.style import COLORS, GREY, LIGHT, fitting, head, legend, log_axis

_BAND = 0.1
_MARKERS = "o^sD"  # the next one when all colours are taken
_PANEL_IN = 2.6


def draw_rows(
    table: pd.DataFrame, subtitle: str, plot: PlotConfig, by: str = "tensor_parallel_size", title: str = "GPUs"
) -> Figure:
    """A panel each for TTFT and TPOT: simulated over measured, a colour for each value of the column `by`.

    `table` has a row per benchmark with ttft_ms, tpot_ms, simulated_ttft_ms, simulated_tpot_ms.
    """
    values = sorted(table[by].unique())
    figure, grid = fitting("Public measurements, simulated", subtitle, 2, plot, _PANEL_IN)
    for axes, name in zip(grid, ("tpot", "ttft"), strict=True):
        _draw(axes, table, name, by, values)
        head(axes, plot.name(f"Mean {name.upper()}"), _facts(table, name))
    handles = [
        Line2D([], [], marker=_marker(i), linestyle="", color=COLORS[i % len(COLORS)], label=plot.name(str(value)))
        for i, value in enumerate(values)
    ]
    legend(figure, handles, title, plot)
    return figure


def _draw(axes: Axes, table: pd.DataFrame, name: str, by: str, values: list[object]) -> None:
    measured, simulated = table[f"{name}_ms"].to_numpy(), table[f"simulated_{name}_ms"].to_numpy()
    both = np.concatenate([measured, simulated])
    low, high = both.min() / 1.2, both.max() * 1.2
    ends = np.array([low, high])
    axes.fill_between(ends, ends * (1 - _BAND), ends * (1 + _BAND), color=LIGHT, alpha=0.4, linewidth=0)
    axes.plot(ends, ends, color=GREY, linewidth=0.8)
    for i, value in enumerate(values):
        here = (table[by] == value).to_numpy()
        color = COLORS[i % len(COLORS)]
        axes.plot(measured[here], simulated[here], _marker(i), markersize=3.5, alpha=0.8, color=color)
    for which in ("x", "y"):
        log_axis(axes, which, low, high, num_ticks=5)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel(f"measured {name.upper()}, ms")
    axes.set_ylabel("simulated, ms")


def _facts(table: pd.DataFrame, name: str) -> str:
    errors = np.abs(table[f"simulated_{name}_ms"] / table[f"{name}_ms"] - 1)
    return f"error: median {errors.median():.1%}, p90 {errors.quantile(0.9):.1%}; grey: ±10 %"


def _marker(i: int) -> str:
    return _MARKERS[i // len(COLORS) % len(_MARKERS)]
