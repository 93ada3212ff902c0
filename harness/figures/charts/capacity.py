"""A capacity search: how much load each configuration carries, what that costs, and the probes; trials of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.figures.chart import NUM_COLORS, Axis, Chart, Mark, Panel, Series, are_far_apart, is_known

_WIDE = 5.0  # ratio of latencies from which they are on a logarithmic axis, which has too few ticks for near ones
_RINGS = "Rings: the SLO was missed, which an overloaded system does whatever its latencies."
_LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue_time")

Row = Mapping[str, Any]


def capacities_chart(rows: Sequence[Row], unit: str, subtitle: str = "") -> Chart | None:
    """Capacities with their intervals, and costs, one place per configuration, the largest capacity on top.

    rows: with a `name`, and what is known of capacity, low, high, cost_per_million_tokens, per_gpu and num_gpus.
    """
    known = sorted((row for row in rows if is_known(row.get("capacity"))), key=lambda row: -row["capacity"])
    if not known:
        return None
    low, high = ([row.get(end) for row in known] for end in ("low", "high"))
    values = [row["capacity"] for row in known]
    dots = Series("", "points", values, range(len(known)), 0, low=low, high=high, marker="o")
    title = "Servers" if unit == "servers" else "Capacity"
    panels = [_places(title, unit, known, dots, "bars: 95 % interval")]
    for key, title, label in (
        ("cost_per_million_tokens", "Cost of a million output tokens", "USD"),
        ("per_gpu", "Capacity per GPU", f"{'requests/s' if unit == 'servers' else unit} per GPU"),
    ):
        shown = [row for row in known if is_known(row.get(key))]
        if shown and (key != "per_gpu" or any(row.get("num_gpus", 1) != 1 for row in shown)):
            bars = Series("", "bars", [row[key] for row in shown], range(len(shown)), 2)
            panels.append(_places(title, label, shown, bars))
    return Chart("Capacities", subtitle, panels)


def probes_chart(rows: Sequence[Row], slo: Mapping[str, float], over: str, unit: str) -> Chart | None:
    """The latencies that have a limit over the load, the probes of each configuration in its colour.

    slo: limits in ms by latency, and the `percentile` that they are for."""
    panels = []
    for name in (each for each in _LATENCIES if each in slo):
        series = [each for place, row in enumerate(rows) for each in _probes(row, f"{name}_ms", place % NUM_COLORS)]
        if series:
            values = [slo[name], *(value for each in series for value in each.y)]
            is_wide = are_far_apart(values, _WIDE)
            x, y = Axis(f"{over.rpartition('.')[2]}, {unit}"), Axis("ms", log=is_wide, start=None if is_wide else 0)
            title, limit = f"p{slo.get('percentile', 99):g} {name.replace('_', ' ').upper()}", slo[name]
            panels.append(Panel(title, x, y, series, [Mark(f"SLO {limit:g} ms", "y", limit)], _RINGS))
    return Chart("Probes", "", panels, legend="") if panels else None


def trials_chart(known: Sequence[tuple[int, Row]], objective: str, falls: bool) -> Chart:
    """The objective of the trials that have one, each with its place among all, and the best so far."""
    places, values = [place for place, _ in known], [float(row["value"]) for _, row in known]
    best = (np.minimum if falls else np.maximum).accumulate(values)
    texts = {"configuration": [str(row.get("label")) for _, row in known]}
    series = [
        Series("best so far", "line", places, best, 1),
        Series("trial", "points", places, values, 0, marker="o", texts=texts),
    ]
    note = "Trials that were given up have no value."
    return Chart("Trials", "", [Panel(objective, Axis("trial"), Axis(objective), series, facts=note)], legend="")


def _places(title: str, label: str, rows: Sequence[Row], series: Series, facts: str = "") -> Panel:
    y = Axis(names=tuple(str(row["name"]) for row in rows))
    return Panel(title, Axis(label, start=0), y, [series], facts=facts, height_in=0.5 + 0.2 * len(rows))


def _probes(row: Row, key: str, color: int) -> list[Series]:
    """Those that hold the SLO, and those that miss it."""
    found = []
    known = [probe for probe in row.get("probes") or () if is_known(probe.get(key)) and is_known(probe.get("value"))]
    known = sorted((probe for probe in known if probe[key] > 0), key=lambda probe: probe["value"])
    for holds in (True, False):
        probes = sorted(
            (probe for probe in known if bool(probe.get("holds")) == holds), key=lambda probe: probe["value"]
        )
        texts = {
            "seed": [str(probe.get("seed")) for probe in probes],
            "SLO": ["holds" if holds else "missed"] * len(probes),
            "verdict": [str(probe.get("verdict")) for probe in probes],
        }
        values, latencies = [probe["value"] for probe in probes], [probe[key] for probe in probes]
        look: dict[str, Any] = {"marker": "o", "hollow": not holds, "texts": texts}
        found += [Series(str(row["name"]), "points", values, latencies, color, **look)] if probes else []
    return found
