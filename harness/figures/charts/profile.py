"""The operator times of a profile by shape: linear layers, attention, logits, all-reduce, and steps beyond them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from harness.figures.chart import NUM_COLORS, Axis, Chart, Panel, Series
from harness.figures.labels import number
from simulator.profile.profile import Profile

_MAX_CURVES = 6
_Curves = list[tuple[str, pd.DataFrame]]


def profile_chart(profile: Profile) -> Chart:
    """Times in microseconds over the size of the work, a panel for each table that has rows."""
    tables, meta = profile.tables, profile.meta
    attention = tables["attention"]
    prefill = attention[(attention["prefill_tokens"] > 0) & (attention["num_decodes"] == 0)]
    decode = attention[(attention["prefill_tokens"] == 0) & (attention["num_decodes"] > 0)]
    panels = [
        _panel("Operators by tokens", "tokens in the step", "num_tokens", _by(tables["tokens"], "operator", str)),
        _panel(
            "Prefill attention, by context", "tokens of the chunk", "prefill_tokens",
            _by(prefill, "prefill_context", lambda value: f"after {number(value)}"),
        ),
        _panel(
            "Decode attention, by sequences", "mean context, tokens", "decode_context",
            _by(decode, "num_decodes", lambda value: f"{number(value)} seqs"),
        ),
        _panel("Operators by sequences", "sequences", "num_sequences", _by(tables["sequences"], "operator", str)),
        _panel("All-reduce", "bytes", "num_bytes", _one(tables.get("all_reduce"))),
        _panel("Step beyond its operators", "tokens in the step", "num_tokens", _by(tables.get("steps"), "kind", str)),
        _panel("Copies of KV blocks", "blocks", "num_blocks", _one(tables.get("copies"))),
    ]  # fmt: skip
    of = f"{meta.model} on {meta.device} · tensor_parallel_size {meta.tensor_parallel_size} · median times of one call"
    return Chart("Operator times of a profile", of, [panel for panel in panels if panel.series])


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


def _panel(title: str, x_label: str, x: str, curves: _Curves) -> Panel:
    series = []
    for place, (name, rows) in enumerate(curves):
        known = rows[(rows[x] > 0) & (rows["time_us"] > 0)].sort_values(x)
        color, dashed = place % NUM_COLORS, place >= NUM_COLORS
        series.append(
            Series(name, "line", known[x].to_numpy(), known["time_us"].to_numpy(), color, dashed, marker=".", width=1)
        )
    return Panel(title, Axis(x_label, log=True, num_ticks=4), Axis("µs", log=True), series, ends=True)
