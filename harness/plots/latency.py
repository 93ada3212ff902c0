"""Cumulative distributions of the latencies of one run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.plots.style import (
    COLORS,
    duration_label,
    head,
    log_axis,
    panels,
    plain_numbers,
    run_subtitle,
    spread_is_wide,
)
from harness.results.metrics import Window
from harness.results.tables import Floats, Gaps, RunResult

# enough points for a smooth line, with more of them in the tail
CURVE_PERCENTILES = np.concatenate((np.linspace(0, 98, 393)[:-1], np.linspace(98, 100, 81)))
NAMES = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "itl": "Inter-token latency (ITL)",
    "e2el": "End-to-end latency (E2EL)",
}


def draw_latency(result: RunResult, summary: Mapping[str, Any]) -> Figure | None:
    """One panel per latency that at least one finished request has; None where there is none."""
    pooled = {
        name: Gaps(seconds, np.ones(len(seconds), dtype=np.int64))
        for name, seconds in _counted(result.requests, summary).items()
    }
    if not pooled:
        return None
    if result.gaps.count:
        pooled["itl"] = result.gaps
    figure, grid = panels("Latency distributions", run_subtitle(summary), 1, len(pooled), (3.1 * len(pooled), 2.9))
    for axes, name in zip(grid[0], (name for name in NAMES if name in pooled), strict=True):
        _draw_panel(axes, name, pooled[name])
    grid[0][0].set_ylabel("share of requests or gaps" if "itl" in pooled else "share of requests")
    return figure


def latency_curves(requests: pd.DataFrame, summary: Mapping[Any, Any]) -> dict[str, Floats]:
    """By latency (no ITL): its `CURVE_PERCENTILES` in s, over the requests that the summary counts."""
    return {name: np.percentile(values, CURVE_PERCENTILES) for name, values in _counted(requests, summary).items()}


def _counted(requests: pd.DataFrame, summary: Mapping[Any, Any]) -> dict[str, Floats]:
    """By latency: its values in s, of finished requests inside the window. Latencies without values are left out."""
    # both are undefined where no request ever arrived, and a window of NaN cuts nothing
    start, end = (np.float64(summary[key]) for key in ("window_start_s", "window_end_s"))
    inside = Window(float(start), float(end)).contains(requests["arrival_time"].to_numpy(dtype=np.float64))
    counted = requests[inside & (requests["status"] == "finished").to_numpy()]
    values = {name: counted[name].dropna().to_numpy(dtype=np.float64) for name in NAMES if name != "itl"}
    return {name: seconds for name, seconds in values.items() if len(seconds)}


def share_axis(axes: Axes) -> None:
    axes.set_ylim(0, 1.03)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])


def seconds_axis(axes: Axes, curves: list[Floats]) -> float:
    """Set up x for curves in s: logarithmic where they are spread wide, in ms or s; returns units per second."""
    everything = np.concatenate(curves)
    scale, unit = (1.0, "s") if float(np.median(everything)) >= 1 else (1e3, "ms")
    low, high = everything.min() * scale, everything.max() * scale
    axes.set_xlabel(unit)
    if spread_is_wide(everything):
        log_axis(axes, "x", low, high)
        pad = math.exp(0.06 * math.log(high / low))
        axes.set_xlim(low / pad, high * pad)
    else:
        pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        axes.locator_params(axis="x", nbins=5)
        plain_numbers(axes, "x")
        axes.set_xlim(low - pad, high + pad)
    return scale


def _draw_panel(axes: Axes, name: str, values: Gaps) -> None:
    *points, p50, p99 = values.percentiles([*CURVE_PERCENTILES, 50, 99]).tolist()
    curve = np.array(points)
    scale = seconds_axis(axes, [curve])
    share_axis(axes)
    axes.plot(curve * scale, CURVE_PERCENTILES / 100, color=COLORS[0])
    for label, share, value in (("p50", 0.5, p50), ("p99", 0.99, p99)):
        axes.plot([value * scale], [share], "o", color=COLORS[1], markersize=4.5, zorder=3)
        # below and to the right of a point on a rising curve there is always room
        at = (value * scale, share)
        axes.annotate(label, at, (6, -3), textcoords="offset points", va="top", color=COLORS[1], size=8)
    counted = ("gap" if name == "itl" else "request") + ("" if values.count == 1 else "s")
    head(axes, NAMES[name], f"p50 {duration_label(p50)}   p99 {duration_label(p99)}   {values.count:,} {counted}")
