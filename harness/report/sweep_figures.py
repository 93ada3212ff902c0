"""Figures of many runs: curves over the load, bars where no load was swept, and the frontier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.plots.labels import parameter_title, short_name
from harness.report.figure import Axis, Figure, Kind, Limit, Series, are_far_apart
from harness.report.words import LATENCIES, is_known, numeric, tail_of
from harness.results.load import ALIKE

Rows = Sequence[Mapping[str, Any]]
_MS = "0,0.[000]"
_COLORS = 8
_MOST_BARS, _MOST_CURVES = 40, 24
_WIDE = 10.0  # ratio of values from which bars on a linear axis show the largest ones only
_LOAD_UNITS = {"arrival.rate": "requests/s", "arrival.concurrency": "clients"}


def curve_figures(rows: Rows, load: str, limits: Mapping[str, float]) -> list[Figure]:
    """One curve per configuration over the load, a figure per metric; those with the highest throughput where they are
    many."""
    rows, note = _drawn(rows)
    x = Axis(f"{short_name(load, [load])}, {load_unit(load)}")
    found = []
    for key, title, axis in _metrics(rows):
        curves = _curves(rows, load, key)
        has_bounds = any(curve.low for curve in curves)
        found.append(Figure(title, x, axis, curves, _limits(key, limits, "y"), _note(note, has_bounds)))
    return found


def bar_figures(rows: Rows, parameters: Sequence[str], limits: Mapping[str, float]) -> list[Figure]:
    """One place per configuration, a figure per metric; those with the highest throughput where they are many.

    Bars, whose lengths compare from zero; points on a logarithmic axis where values are orders of magnitude apart; and
    points with their intervals where there are some.
    """
    chosen = [row for group in by_throughput(rows) for row in group][:_MOST_BARS]
    note = f"The {_MOST_BARS} of {len(rows)} with the highest throughput." if len(rows) > _MOST_BARS else ""
    found = []
    for key, title, axis in _metrics(rows):
        shown = [row for row in chosen if is_known(row.get(key))]
        if not shown:
            continue
        y = Axis(parameter_title(parameters), names=[str(row["label"]) for row in shown])
        low, high = _bounds(shown, key)
        values = [row[key] for row in shown]
        is_wide = axis.log and are_far_apart(values, _WIDE)
        kind: Kind = "interval" if low else "points" if is_wide else "bars"
        series = Series("", kind, values, range(len(shown)), 0, low=low, high=high)
        x = Axis(axis.label, format=axis.format, log=axis.log and kind != "bars", start=None if low else axis.start)
        height = 110 + 22 * len(shown)
        found.append(
            Figure(title, x, y, [series], _limits(key, limits, "x"), _note(note, low is not None), height=height)
        )
    return found


def by_throughput(rows: Rows) -> list[list[Mapping[str, Any]]]:
    """Groups of rows that serve alike, from the highest output throughput to the lowest.

    Those of a group are within `ALIKE` of its highest, as all are that keep up with the same arrivals. They stand from
    the lowest TTFT of the tail to the highest.
    """
    tail = tail_of(rows[0]) if rows else "p99"
    groups: list[list[Mapping[str, Any]]] = []
    for row in sorted(rows, key=lambda row: -throughput(row)):
        if not groups or throughput(row) < (1 - ALIKE) * throughput(groups[-1][0]):
            groups.append([])
        groups[-1].append(row)
    return [sorted(group, key=lambda row: _or_last(row.get(f"{tail}_ttft_ms"))) for group in groups]


def throughput(row: Mapping[str, Any]) -> float:
    """Output tokens/s; 0 where they are not known."""
    found = row.get("output_throughput")
    return found if is_known(found) else 0.0


def frontier_figure(rows: Rows, load: str | None) -> Figure | None:
    """Tokens/s per GPU against tokens/s per user: what a configuration gives its operator and each of its users.

    None where fewer than two are known, and where all have the same throughput: nothing is traded then.
    """
    rows, _ = _drawn(rows)
    placed = [(row, _per_user(row), _per_gpu(row)) for row in rows]
    placed = [(row, x, y) for row, x, y in placed if is_known(x) and is_known(y)]
    heights = [y for _, _, y in placed]
    if len(placed) < 2 or max(heights) <= (1 + ALIKE) * min(heights):
        return None
    series = []
    for color, label in enumerate(dict.fromkeys(str(row["label"]) for row, _, _ in placed)):
        own = [each for each in placed if str(each[0]["label"]) == label]
        own.sort(key=lambda each: numeric(each[0].get(load)) if load else 0.0)
        texts = {short_name(load, [load]): [f"{row.get(load):g}" for row, _, _ in own]} if load else {}
        xs, ys = [x for _, x, _ in own], [y for _, _, y in own]
        kind: Any = "line" if len(own) > 1 else "points"
        series.append(Series(label, kind, xs, ys, color % _COLORS, color >= _COLORS, texts=texts))
    return Figure(
        "Throughput per GPU against speed for each user",
        Axis("output tokens/s per user"), Axis("output tokens/s per GPU"), series,
        note="The further up and right, the better. A user's speed is 1 / median TPOT.", wide=True, height=380,
    )  # fmt: skip


def load_unit(load: str) -> str:
    """What a value of the load counts; the name of its key where that is not known."""
    return _LOAD_UNITS.get(load, short_name(load, [load]).replace("_", " "))


def _drawn(rows: Rows) -> tuple[Rows, str]:
    """The rows of the configurations that are drawn as curves, and a note where others are left out."""
    ranked = sorted(rows, key=lambda row: -throughput(row))
    labels = list(dict.fromkeys(str(row["label"]) for row in ranked))
    chosen = set(labels[:_MOST_CURVES])
    note = f"The {_MOST_CURVES} of {len(labels)} with the highest throughput." if len(labels) > _MOST_CURVES else ""
    return [row for row in rows if str(row["label"]) in chosen], note


def _metrics(rows: Rows) -> list[tuple[str, str, Axis]]:
    """Key, title and axis of the metrics that are drawn and known."""
    tail = tail_of(rows[0]) if rows else "p99"
    wanted = [
        (f"{tail}_ttft_ms", f"{tail} TTFT", Axis("ms", log=True, format=_MS)),
        (f"{tail}_tpot_ms", f"{tail} TPOT", Axis("ms", format=_MS, start=0)),
        ("output_throughput", "Output throughput", Axis("tokens/s", start=0)),
        ("goodput_share", "Requests that meet the SLO", Axis("share of requests", format="0.[0]%", start=0)),
        ("mean_kv_cache_usage", "KV cache in use", Axis("share of blocks", format="0.[0]%", start=0)),
        ("preemptions", "Preemptions", Axis("events", format="0,0.[0]", start=0)),
    ]
    return [each for each in wanted if any(is_known(row.get(each[0])) and row[each[0]] for row in rows)]


def _curves(rows: Rows, load: str, key: str) -> list[Series]:
    found = []
    for color, label in enumerate(dict.fromkeys(str(row["label"]) for row in rows)):
        own = [row for row in rows if str(row["label"]) == label and is_known(row.get(load)) and is_known(row.get(key))]
        own.sort(key=lambda row: numeric(row[load]))
        low, high = _bounds(own, key)
        texts = {"load": [str(row["verdict"]) for row in own]} if own and all(row.get("verdict") for row in own) else {}
        xs, ys = [row[load] for row in own], [row[key] for row in own]
        found.append(Series(label, "line", xs, ys, color % _COLORS, color >= _COLORS, low, high, texts=texts))
    return found


def _or_last(value: Any) -> float:
    return value if is_known(value) else math.inf


def _bounds(rows: Rows, key: str) -> tuple[list[Any] | None, list[Any] | None]:
    """Both bounds where all rows have them."""
    bounds = [[row.get(f"{key}_{end}") for row in rows] for end in ("low", "high")]
    if not rows or not any(is_known(low) and is_known(high) for low, high in zip(*bounds, strict=True)):
        return None, None
    return bounds[0], bounds[1]


def _note(note: str, has_bounds: bool) -> str:
    return f"{note} Thin lines are 95 % intervals.".strip() if has_bounds else note


def _limits(key: str, limits: Mapping[str, float], axis: Any) -> list[Limit]:
    return [
        Limit(f"SLO {LATENCIES[name]} {limit:g} ms", axis, limit)
        for name, limit in limits.items()
        if key.endswith(f"_{name}_ms")
    ]


def _per_user(row: Mapping[str, Any]) -> float:
    tpot = row.get("median_tpot_ms")
    of_tpot = 1000 / tpot if is_known(tpot) and tpot else None
    return numeric(row.get("interactivity", of_tpot))


def _per_gpu(row: Mapping[str, Any]) -> float:
    known = row.get("output_throughput_per_gpu")
    gpus = row.get("num_gpus") or row.get("tensor_parallel_size") or 1
    return numeric(known) if is_known(known) else numeric(row.get("output_throughput")) / gpus
