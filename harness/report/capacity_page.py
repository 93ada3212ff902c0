"""The page of a capacity search: how much load each configuration carries within the SLO, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.report.elements import Cell, Markup, Tone, code, facts, figures, folded, section, table, tiles, verdict
from harness.report.figure import Axis, Figure, Limit, Series
from harness.report.page import Page
from harness.report.reproduction import read_document, reproduction, settings_of
from harness.report.words import LATENCIES, count, interval_text, is_known, number_cell, numeric, tail_of, value_text
from harness.results.files import SUMMARY
from harness.results.summary import number

CAPACITY = "capacity.json"
_COLORS = 8
_MS = "0,0.[000]"
_VERDICTS: dict[str, Tone] = {"stable": "good", "overloaded": "bad", "unclear": "warn"}
_COLUMNS = {
    "per_gpu": "per GPU",
    "num_gpus": "GPUs",
    "output_throughput": "output tok/s",
    "interactivity": "tok/s per user",
    "cost_per_million_tokens": "cost per M tokens",
    "joules_per_token": "J/token (estimate)",
    "num_probes": "probes",
}

Row = Mapping[str, Any]


def capacity_page(folder: Path) -> Page:
    """The page of the search in `folder`.

    Raises:
        TwinServeError: its capacity.json cannot be read.
    """
    document = read_document(folder / CAPACITY)
    rows = [row for row in document.get("rows") or () if isinstance(row, dict)]
    unit, over = str(document.get("unit") or ""), str(document.get("over") or "load")
    best = _best(document, rows)
    environment = _environment(folder, rows)
    return Page(
        title=f"Capacity of {count(len(rows), 'configuration')}",
        badges=[("plain", "CAPACITY")],
        question=str(document.get("question") or f"How much {over} does each configuration carry within the SLO?"),
        parts=[
            _verdict(document, best),
            code(str(document.get("command") or "")),
            tiles(_tiles(best, unit)) if best else Markup(""),
            section("Capacities", figures(_overview(rows, unit)), _table(rows, unit)),
            section(
                "Probes",
                figures(_probe_figures(rows, document.get("slo") or {}, over, unit)),
                _probe_tables(rows, unit),
            ),
            section(
                "SLO", facts((str(name), value_text(value)) for name, value in (document.get("slo") or {}).items())
            ),
            reproduction(folder, environment, settings_of(folder)),
        ],
    )


def _verdict(document: Mapping[str, Any], best: Row | None) -> Markup:
    sentence = str(document.get("sentence") or "")
    if best is None:
        return verdict("bad", "No configuration holds the SLO.", sentence)
    return verdict("good", "Best:", sentence or str(best.get("label")))


def _best(document: Mapping[str, Any], rows: Sequence[Row]) -> Row | None:
    index = document.get("best")
    return rows[index] if isinstance(index, int) and 0 <= index < len(rows) else None


def _tiles(best: Row, unit: str) -> list[tuple[str, str, str]]:
    found = [("Capacity", f"{_shown(best, 'capacity')} {unit}", interval_text(best.get("low"), best.get("high")))]
    for key, name, unit_of in (
        ("per_gpu", "Per GPU", unit),
        ("output_throughput", "Output throughput", "tok/s"),
        ("interactivity", "Each user", "tok/s"),
        ("cost_per_million_tokens", "Million tokens cost", ""),
        ("joules_per_token", "Energy, estimated", "J/token"),
    ):
        if is_known(best.get(key)):
            found.append((name, f"{_shown(best, key)} {unit_of}".strip(), ""))
    return found


def _overview(rows: Sequence[Row], unit: str) -> list[Figure]:
    """Capacities with their intervals, and costs, one place per configuration, the largest capacity on top."""
    ranked = sorted(rows, key=lambda row: -numeric(row.get("capacity")) if is_known(row.get("capacity")) else 0.0)
    known = [row for row in ranked if is_known(row.get("capacity"))]
    if not known:
        return []
    low, high = ([row.get(end) for row in known] for end in ("low", "high"))
    capacities = Series("", "interval", [row["capacity"] for row in known], range(len(known)), 0, low=low, high=high)
    found = [_places("Capacity", Axis(unit, start=0), known, capacities, "Lines are the 95 % intervals.")]
    for key, title, axis in (
        ("cost_per_million_tokens", "Cost of a million output tokens", Axis("cost", start=0)),
        ("per_gpu", "Capacity per GPU", Axis(f"{unit} per GPU", start=0)),
    ):
        shown = [row for row in known if is_known(row.get(key))]
        if shown and (key != "per_gpu" or any(row.get("num_gpus", 1) != 1 for row in shown)):
            bars = Series("", "bars", [row[key] for row in shown], range(len(shown)), 2)
            found.append(_places(title, axis, shown, bars, ""))
    return found


def _places(title: str, x: Axis, rows: Sequence[Row], series: Series, note: str) -> Figure:
    y = Axis("", names=[str(row.get("label")) for row in rows])
    return Figure(title, x, y, [series], note=note, height=110 + 24 * len(rows))


def _table(rows: Sequence[Row], unit: str) -> Markup:
    shown = {key: name for key, name in _COLUMNS.items() if any(is_known(row.get(key)) for row in rows)}
    cells = [
        [
            Cell(str(row.get("label"))),
            number_cell(row.get("capacity")),
            Cell(interval_text(row.get("low"), row.get("high")) or "–", numeric(row.get("low"))),
            *(number_cell(row.get(key)) for key in shown),
        ]
        for row in rows
    ]
    return table(["configuration", f"capacity, {unit}", "95 % interval", *shown.values()], cells)


def _probe_figures(rows: Sequence[Row], slo: Mapping[str, Any], over: str, unit: str) -> list[Figure]:
    """The latencies that have a limit over the load, one curve of probes per configuration."""
    found = []
    for name, label in LATENCIES.items():
        limit = slo.get(f"{name}_ms")
        if not is_known(limit):
            continue
        curves = [_probes(row, name, color) for color, row in enumerate(rows)]
        curves = [curve for curve in curves if len(curve.x)]
        if curves:
            x, y = Axis(f"{over.rpartition('.')[2]}, {unit}"), Axis("ms", log=True, format=_MS)
            title = f"{tail_of(_first_probe(rows))} {label}"
            found.append(Figure(title, x, y, curves, [Limit(f"SLO {limit:g} ms", "y", float(limit))]))
    return found


def _probes(row: Row, latency: str, color: int) -> Series:
    probes = sorted(row.get("probes") or (), key=lambda probe: numeric(probe.get("value")))
    key = f"{tail_of(probes[0])}_{latency}_ms" if probes else ""
    known = [probe for probe in probes if is_known(probe.get(key)) and probe[key] > 0]
    texts = {
        "SLO": ["holds" if probe.get("holds") else "missed" for probe in known],
        "load": [str(probe.get("verdict")) for probe in known],
    }
    values, latencies = [probe["value"] for probe in known], [probe[key] for probe in known]
    return Series(str(row.get("label")), "line", values, latencies, color % _COLORS, color >= _COLORS, texts=texts)


def _probe_tables(rows: Sequence[Row], unit: str) -> Markup:
    """All probes of all configurations, in one folded table."""
    keys = list(
        dict.fromkeys(
            key
            for row in rows
            for probe in row.get("probes") or ()
            for key, value in probe.items()
            if key not in ("value", "holds", "verdict") and is_known(value)
        )
    )
    cells = [
        [
            Cell(str(row.get("label"))),
            number_cell(probe.get("value")),
            Cell("holds", tone="good") if probe.get("holds") else Cell("missed", tone="bad"),
            Cell(str(probe.get("verdict") or "–"), tone=_VERDICTS.get(str(probe.get("verdict")), "plain")),
            *(number_cell(probe.get(key)) for key in keys),
            Cell(str(probe.get("folder") or "")),
        ]
        for row in rows
        for probe in row.get("probes") or ()
    ]
    heads = ["configuration", unit, "SLO", "load", *(key.replace("_", " ") for key in keys), "folder"]
    return folded(f"All {count(len(cells), 'probe')}", table(heads, cells)) if cells else Markup("")


def _first_probe(rows: Sequence[Row]) -> Row:
    return next((probe for row in rows for probe in row.get("probes") or ()), {})


def _environment(folder: Path, rows: Sequence[Row]) -> Mapping[str, Any]:
    """Of the first probe whose folder is there, as it is stored or inside that of the search."""
    name = _first_probe(rows).get("folder")
    for path in (Path(str(name)), folder / str(name)) if name else ():
        if (path / SUMMARY).is_file():
            return read_document(path / SUMMARY).get("environment") or {}
    return {}


def _shown(row: Row, key: str) -> str:
    value = row.get(key)
    return number(value if is_known(value) else None)
