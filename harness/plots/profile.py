"""The operator times of a profile by shape: linear layers, attention, logits, all-reduce, and steps beyond them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.config.plotting import PlotConfig
from harness.plots.labels import number
from harness.plots.placement import Name, name_ends
from harness.plots.style import COLORS, fitting, head, log_axis
from simulator.profile.profile import Profile

_PANEL_IN = {"column": 1.6, "page": 2.2}
_MAX_CURVES = 6
_Curves = list[tuple[str, pd.DataFrame]]


def draw_profile(profile: Profile, plot: PlotConfig) -> Figure:
    """Times in microseconds over the size of the work, a panel for each table that has rows."""
    panels = [panel for panel in _panels(profile) if panel[3]]
    meta = profile.meta
    facts = [
        f"{meta.model} on {meta.device}",
        f"tensor_parallel_size {meta.tensor_parallel_size}",
        "median times of one call",
    ]
    figure, axes = fitting("Operator times of a profile", " · ".join(facts), len(panels), plot, _PANEL_IN[plot.width])
    drawn = [_draw(panel, plot, *content) for panel, content in zip(axes, panels, strict=True)]
    figure.draw_without_rendering()  # places the axes, on which the names depend
    for panel, names in zip(axes, drawn, strict=True):
        name_ends(panel, names, size=6.5)
    return figure


def _panels(profile: Profile) -> list[tuple[str, str, str, _Curves]]:
    """Title, x label, x column and curves of each panel."""
    tables = profile.tables
    attention = tables["attention"]
    prefill = attention[(attention["prefill_tokens"] > 0) & (attention["num_decodes"] == 0)]
    decode = attention[(attention["prefill_tokens"] == 0) & (attention["num_decodes"] > 0)]
    return [
        ("Operators by tokens", "tokens in the step", "num_tokens", _by(tables["tokens"], "operator", str)),
        (
            "Prefill attention, by context before", "tokens of the chunk", "prefill_tokens",
            _by(prefill, "prefill_context", lambda value: f"after {number(value)}"),
        ),
        (
            "Decode attention, by sequences", "mean context, tokens", "decode_context",
            _by(decode, "num_decodes", lambda value: f"{number(value)} seqs"),
        ),
        ("Operators by sequences", "sequences", "num_sequences", _by(tables["sequences"], "operator", str)),
        ("All-reduce", "bytes", "num_bytes", _one(tables.get("all_reduce"))),
        ("Step beyond its operators", "tokens in the step", "num_tokens", _by(tables.get("steps"), "kind", str)),
        ("Copies of KV blocks", "blocks", "num_blocks", _one(tables.get("copies"))),
    ]  # fmt: skip


def _by(table: pd.DataFrame | None, column: str, name: Callable[[Any], str]) -> _Curves:
    """Rows by value of a column: the longest curves of some values spread over all of them."""
    if table is None or table.empty:
        return []
    groups = [(value, rows) for value, rows in table.groupby(column, sort=True)]
    if not isinstance(groups[0][0], str) and len(groups) > _MAX_CURVES:
        longest = max(len(rows) for _, rows in groups)
        groups = [group for group in groups if len(group[1]) >= 0.5 * longest]
        chosen = np.unique(np.linspace(0, len(groups) - 1, min(_MAX_CURVES, len(groups))).round().astype(int))
        groups = [groups[place] for place in chosen]
    return [(name(value), rows) for value, rows in groups]


def _one(table: pd.DataFrame | None) -> _Curves:
    return [] if table is None or table.empty else [("", table)]


def _draw(axes: Axes, plot: PlotConfig, title: str, x_label: str, x: str, curves: _Curves) -> list[Name]:
    """Draws the curves and returns their names with their ends."""
    names = []
    for place, (name, rows) in enumerate(curves):
        known = rows[(rows[x] > 0) & (rows["time_us"] > 0)].sort_values(x)
        color = COLORS[place % len(COLORS)]
        dashes = "-" if place < len(COLORS) else "--"
        axes.plot(known[x], known["time_us"], dashes, marker=".", markersize=3, linewidth=1, color=color)
        if name and len(known):
            names.append(Name(float(known[x].iloc[-1]), float(known["time_us"].iloc[-1]), plot.name(name), color))
    _log_limits(axes)
    axes.set_xlabel(x_label)
    axes.set_ylabel("µs")
    head(axes, plot.name(title))
    return names


def _log_limits(axes: Axes) -> None:
    points = np.concatenate([np.asarray(line.get_xydata()) for line in axes.get_lines()])
    for which, values in zip("xy", points.T, strict=True):
        low, high = (float(values.min()), float(values.max())) if len(values) else (1.0, 10.0)
        high = max(high, 1.01 * low)
        log_axis(axes, which, low, high, num_ticks=4 if which == "x" else 5)
        (axes.set_xlim if which == "x" else axes.set_ylim)(low / 1.3, high * 1.3)
