"""Distributions of latencies: how many requests are within a time, and the tail: how many take longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.chart import NUM_COLORS, Axis, Chart, Color, Mark, Panel, Series, are_far_apart
from harness.figures.charts.compare import line_colors
from harness.figures.labels import number, parameter_title, short_name, value_label
from harness.figures.subtitles import comparison_subtitle, run_subtitle
from harness.results.columns import floats
from harness.results.metrics import Window
from harness.results.tables import Floats, Gaps, Rows, RunResult

if TYPE_CHECKING:
    import pandas as pd

# enough points for a smooth line, and evenly spaced ones in the logarithm of the tail
CURVE_PERCENTILES = np.concatenate((np.linspace(0, 98, 393)[:-1], 100 - np.geomspace(2, 1e-3, 90), [100.0]))
SHARES = Axis("share within", percent=True, start=0, end=1.03, ticks=(0, 0.25, 0.5, 0.75, 1))
_NAMES = ("ttft", "tpot", "itl", "e2el")
_TAIL_SHARES = (1.0, 0.1, 0.01, 0.001, 1e-4, 1e-5)
_LEAST_TAIL = 1e-3  # of a comparison
_P99 = int(np.searchsorted(CURVE_PERCENTILES, 99))
_HEIGHT_IN = 1.75


def latency_chart(result: RunResult, summary: Mapping[str, Any]) -> Chart | None:
    """The distribution and the tail of each latency that at least one finished request has, with SLO lines; None where
    there is none."""
    pooled = {
        name: Gaps(seconds, np.ones(len(seconds), dtype=np.int64))
        for name, seconds in _latencies(counted(result.request_rows, summary)).items()
    }
    if not pooled:
        return None
    if result.gaps.count:
        pooled["itl"] = result.gaps
    found = [_of_run(name, pooled[name], summary.get(f"slo_{name}_ms")) for name in _NAMES if name in pooled]
    return _paired("Latency distributions, and their tails", run_subtitle(summary), found)


def distributions_chart(
    table: pd.DataFrame, curves: Mapping[str, Mapping[str, Floats]], plot: PlotConfig
) -> Chart | None:
    """The distributions and tails of a table of configurations, at the highest load that none is overloaded at.

    curves: by label, and by load where one was swept (`curve_key`), the latencies with their `CURVE_PERCENTILES` in s.
    With more configurations than colours, those with the highest output throughput.
    """
    load, note = table.attrs["load"], []
    if load:
        at = _common_load(table)
        table, note = table[table[load] == at], [f"at {short_name(load, [load])} {value_label(at)}"]
    best = table.sort_values("output_throughput", ascending=False).head(NUM_COLORS)
    keys = {str(row["label"]): curve_key(row, load) for row in best.to_dict("records")}
    drawn = {label: curves[key] for label, key in keys.items() if curves.get(key)}
    names = [name for name in _NAMES if any(name in found for found in drawn.values())]
    if not names:
        return None
    if len(best) < len(table):
        note.append(f"the {len(best)} of {len(table)} configurations with the highest output throughput")
    colors = line_colors(table[table["label"].isin(list(drawn))], ["label"])
    dashed = dict(zip(best["label"], best["simulated"].astype(bool) & (not best["simulated"].all()), strict=True))
    # named in the order of their tails, from top to bottom
    ordered = sorted(drawn, key=lambda label: -next(iter(drawn[label].values()))[_P99])
    pairs = []
    for name in names:
        limits = best[f"slo_{name}_ms"].dropna().unique().tolist() if f"slo_{name}_ms" in best else []
        lines = [
            (label, drawn[label][name], colors[label], bool(dashed[label])) for label in ordered if name in drawn[label]
        ]
        pairs.append(_pair(name, lines, limits[0] if len(limits) == 1 else None, _LEAST_TAIL))
    subtitle = comparison_subtitle(table, plot, *note)
    return _paired("Latencies compared", subtitle, pairs, parameter_title(table.attrs["parameters"]))


def counted(requests: Rows, summary: Mapping[Any, Any]) -> Rows:
    """The finished requests that arrived inside the summary's window."""
    # both are undefined where no request counts, and a window of NaN has no arrival in it
    start, end = (np.float64(summary.get(key)) for key in ("window_start_s", "window_end_s"))
    inside = Window(float(start), float(end)).contains(floats(requests, "arrival_time"))
    return requests[inside & (requests["status"] == "finished").to_numpy()]


def curve_key(row: Mapping[Any, Any], load: str | None) -> str:
    """The key of a configuration at its load in a mapping of curves."""
    return f"{row['label']} at {row[load]}" if load else str(row["label"])


def latency_curves(requests: Rows, summary: Mapping[Any, Any]) -> dict[str, Floats]:
    """By latency (no ITL): its `CURVE_PERCENTILES` in s, over the requests that the summary counts."""
    values = _latencies(counted(requests, summary))
    return {name: np.percentile(seconds, CURVE_PERCENTILES) for name, seconds in values.items()}


def seconds_axis(curves: Sequence[Floats], log: bool | None = None) -> tuple[float, Axis]:
    """Units per second, and the axis for curves in s: logarithmic as `log` says, or where they are spread wide; never
    with a curve that reaches 0."""
    everything = np.concatenate(list(curves))
    is_log = are_far_apart(everything) if log is None else log and everything.min() > 0
    scale, unit = (1.0, "s") if float(np.median(everything)) >= 1 else (1e3, "ms")
    return scale, Axis(unit, log=bool(is_log), num_ticks=3)


def _latencies(requests: Rows) -> dict[str, Floats]:
    """By latency of single requests: its values in s. Latencies without values are left out."""
    every = {name: floats(requests, name) for name in _NAMES if name != "itl"}
    known = {name: seconds[~np.isnan(seconds)] for name, seconds in every.items()}
    return {name: seconds for name, seconds in known.items() if len(seconds)}


def _common_load(table: pd.DataFrame) -> Any:
    """The highest load that every configuration has and none is overloaded at; the middle one without verdicts."""
    load = table.attrs["load"]
    counts = table.groupby(load)["label"].nunique()
    common = sorted(counts[counts == counts.max()].index)
    if "verdict" not in table or table["verdict"].isna().all():
        return common[len(common) // 2]
    over = set(table.loc[table["verdict"] == "overloaded", load])
    return max((each for each in common if each not in over), default=common[0])


def _of_run(name: str, values: Gaps, limit_ms: float | None) -> list[Panel]:
    *points, p50, p99 = values.percentiles([*CURVE_PERCENTILES, 50, 99]).tolist()
    curve = np.array(points)
    counted = f"{values.count:,} " + ("gap" if name == "itl" else "request") + ("" if values.count == 1 else "s")
    if limit_ms is not None:
        within = values.weights[values.values <= limit_ms / 1e3].sum() / values.count
        counted = f"{within:.1%} within SLO {_duration(limit_ms / 1e3)}"
    facts = f"p50 {_duration(p50)}, p99 {_duration(p99)}\n{counted}"
    least = max(min(0.5 / values.count, 0.005), _TAIL_SHARES[-1])
    return _pair(name, [("", curve, 0, False)], limit_ms, least, facts, (p50, p99))


def _pair(
    name: str,
    lines: Sequence[tuple[str, Floats, Color, bool]],
    limit_ms: float | None,
    least: float,
    facts: str = "",
    marked_s: tuple[float, float] | None = None,
) -> list[Panel]:
    """The panels of a latency: its distribution and its tail down to the share `least`.

    lines: name, `CURVE_PERCENTILES` in s, colour, and whether dashed. marked_s: p50 and p99, of a single line.
    """
    limit = [np.array([limit_ms / 1e3])] if limit_ms is not None else []
    scale, x = seconds_axis([*(curve for _, curve, _, _ in lines), *limit])
    marks = []
    if limit_ms is not None:
        at = limit_ms / 1e3 * scale
        marks = [Mark(f"SLO {number(at)} {x.label}", "x", at, written=not facts)]
    shares = CURVE_PERCENTILES / 100
    whole = [Series(label, "line", curve * scale, shares, color, dash) for label, curve, color, dash in lines]
    tail = [
        Series(label, "line", curve[:-1] * scale, 1 - shares[:-1], color, dash) for label, curve, color, dash in lines
    ]
    if marked_s:
        points = [value * scale for value in marked_s]
        for series, places in ((whole, [0.5, 0.99]), (tail, [0.5, 0.01])):
            series.append(Series("", "points", points, places, 1, marker="o", labels=("p50", "p99")))
    ticks = tuple(share for share in _TAIL_SHARES if share >= least)
    beyond = Axis("share beyond", log=True, percent=True, start=least, end=1.15, ticks=ticks)
    return [
        Panel(name.upper(), x, SHARES, whole, marks, facts, height_in=_HEIGHT_IN),
        Panel(f"Tail of {name.upper()}", x, beyond, tail, marks, height_in=_HEIGHT_IN),
    ]


def _paired(title: str, subtitle: str, pairs: Sequence[list[Panel]], legend: str | None = None) -> Chart:
    panels = [panel for pair in pairs for panel in pair]
    return Chart(title, subtitle, panels, len(pairs), 2, by_column=True, legend=legend)


def _duration(seconds: float) -> str:
    return f"{number(seconds)} s" if seconds >= 1 else f"{number(seconds * 1e3)} ms"
