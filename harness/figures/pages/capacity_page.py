"""The page of a capacity search: how much load each configuration carries within the SLO, and what that costs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.figures.chart import is_known
from harness.figures.charts.capacity import capacities_chart, probes_chart
from harness.figures.labels import parameter_label, parameter_title, short_name
from harness.figures.pages.elements import (
    Cell,
    Markup,
    Tone,
    bullets,
    code,
    figures,
    folded,
    paragraph,
    section,
    table,
    tiles,
    verdict,
)
from harness.figures.pages.notes import shared_notes
from harness.figures.pages.page import Page
from harness.figures.pages.reproduction import read_document, reproduction, settings_of
from harness.figures.pages.search_page import Row, best_row, mixed_verdict, trials
from harness.figures.pages.words import count, interval_text, number_cell, numeric, value_text
from harness.results.stored.files import CAPACITY, SEARCH, SUMMARY
from harness.results.summary import number

_VERDICTS: dict[str, Tone] = {"stable": "good", "overloaded": "bad", "unclear": "warn"}
_UNSHOWN = ("value", "holds", "verdict", "busy", "num_gpus")  # in columns of their own, or the same for all
_COLUMNS = {
    "per_gpu": "per GPU",
    "num_gpus": "GPUs",
    "output_throughput": "output tok/s",
    "interactivity": "tok/s per user",
    "cost_per_million_tokens": "USD per M tokens",
    "joules_per_token": "J/token (estimate)",
    "num_probes": "probes",
}


def capacity_page(folder: Path) -> Page:
    """The page of the search in `folder`.

    Raises:
        TwinServeError: its capacity.json cannot be read.
    """
    document = read_document(folder / CAPACITY)
    searched = read_document(folder / SEARCH) if (folder / SEARCH).exists() else {}
    keys, rows = _named([row for row in document.get("rows") or () if isinstance(row, dict)])
    unit, over = str(document.get("unit") or ""), str(document.get("over") or "load")
    best = best_row(document, rows)
    summary = _first_summary(folder)
    probes = figures(probes_chart(rows, _limits(document), over, unit))
    return Page(
        title=_title(rows, summary),
        badges=[("plain", "CAPACITY")],
        question=_question(document, over),
        parts=[
            mixed_verdict(searched.get("rows") or rows),
            _verdict(document, best, "Best:" if len(rows) > 1 else "Found:"),
            code(str(document.get("command") or "")),
            tiles(_tiles(best, unit)) if best else Markup(""),
            section("When one server fails, and at twice the load", _scenarios(best or {}, _limits(document))),
            Markup("")
            if len(rows) == 1
            else section("Capacities", *_compared(rows, keys, unit)),  # tiles say it of one
            section("Probes: runs at one load each", probes, _probe_table(rows, unit)),
            trials(searched) if searched else Markup(""),
            section("Good to know", bullets(shared_notes(_notes(folder)))),
            reproduction(folder, summary.get("environment") or {}, settings_of(folder) or summary.get("config") or {}),
        ],
    )


def _title(rows: Sequence[Row], summary: Mapping[str, Any]) -> str:
    if len(rows) == 1 and {"model", "device"} <= summary.keys():
        return f"Capacity of {summary['model']} on {summary['device']}"
    return f"Capacity of {count(len(rows), 'configuration')}"


def _question(document: Mapping[str, Any], over: str) -> str:
    asked = str(document.get("question") or f"How much {over} does each configuration carry within the SLO?")
    return f"{asked[:1].upper()}{asked[1:]}{'' if asked.endswith(('?', '.')) else '?'}"


def _verdict(document: Mapping[str, Any], best: Row | None, head: str) -> Markup:
    sentence = str(document.get("sentence") or "")
    if best is None:
        return verdict("bad", "No configuration holds the SLO.", sentence)
    return verdict("good", head, sentence.removeprefix("Best: ") or str(best["name"]))


def _tiles(best: Row, unit: str) -> list[tuple[str, str, str]]:
    found = [("Capacity", f"{_shown(best, 'capacity')} {unit}", interval_text(best.get("low"), best.get("high")))]
    if unit == "servers":
        is_sure = best.get("low") == best.get("high")
        ends = "" if is_sure else interval_text(best.get("low"), best.get("high"))
        found[0] = ("Servers", _shown(best, "capacity"), ends)
    for key, name, unit_of in (
        ("num_gpus" if unit == "servers" else "", "GPUs", ""),
        ("cost_per_hour", "An hour costs", "USD"),
        ("per_gpu", "Per GPU", "requests/s" if unit == "servers" else unit),
        ("output_throughput", "Output throughput", "tok/s"),
        ("interactivity", "Each user", "tok/s"),
        ("cost_per_million_tokens", "A million tokens cost", "USD"),
        ("joules_per_token", "Energy, estimated", "J/token"),
    ):
        if is_known(best.get(key)):
            found.append((name, f"{_shown(best, key)} {unit_of}".strip(), ""))
    return found


def _scenarios(row: Row, limits: Mapping[str, float]) -> Markup:
    """What is simulated beside the fewest servers: one of them down, and twice the load; nothing where it is not."""
    fewer, twice = row.get("one_fewer"), row.get("twice")
    if not twice:
        return Markup("")
    rate, count = row["rate"], row["capacity"]
    own = [probe for probe in row["probes"] if probe["value"] == count and probe["holds"]]
    shown = [("as asked", rate, count, own[-1] if own else {}, row)]
    if fewer:
        shown.append(("one server down", rate, fewer["servers"], fewer["at_load"] or {}, {}))
        shown.append(("one server down, the most that holds", fewer["capacity"], fewer["servers"], {}, {}))
    shown.append(("twice the load, the same servers", twice["rate"], count, twice["same"], row))
    if twice["capacity"] is not None:
        held = next(probe for probe in reversed(twice["probes"]) if probe["value"] == twice["capacity"])
        shown.append(("twice the load, as many servers as hold it", twice["rate"], twice["capacity"], held, twice))
    names = [name for name in limits if name != "percentile"]
    cells = [
        [
            Cell(text),
            number_cell(load),
            Cell(f"{servers:g}", servers),
            _outcome(probe),
            *(number_cell(None if _is_overloaded(probe) else probe.get(f"{name}_ms")) for name in names),
            number_cell(costs.get("cost_per_hour")),
        ]
        for text, load, servers, probe, costs in shown
    ]
    tail = f"p{limits.get('percentile', 99):g}"
    heads = ["", "requests/s", "servers", "SLO", *(f"{tail} {name.upper()}, ms" for name in names), "USD per hour"]
    return table(heads, cells)


def _outcome(probe: Row) -> Cell:
    """Whether the SLO holds in a probe, or in what was found without one."""
    if probe.get("holds", True):
        return Cell("holds", tone="good")
    return Cell("overloaded" if _is_overloaded(probe) else "missed", tone="bad")


def _is_overloaded(probe: Row) -> bool:
    """Whether the probe was overloaded: its latencies then measure how long it ran."""
    return probe.get("verdict") == "overloaded"


def _compared(rows: Sequence[Row], keys: Sequence[str], unit: str) -> list[Markup]:
    names = [paragraph(f"Configurations are named by {parameter_title(keys)}.")] if keys else []
    return [*names, figures(capacities_chart(rows, unit)), _table(rows, keys, unit)]


def _table(rows: Sequence[Row], keys: Sequence[str], unit: str) -> Markup:
    shown = {key: name for key, name in _COLUMNS.items() if any(is_known(row.get(key)) for row in rows)}
    cells = [
        [
            *([_setting(row["overrides"][key]) for key in keys] or [Cell(str(row["name"]))]),
            number_cell(row.get("capacity")),
            Cell(interval_text(row.get("low"), row.get("high")) or "–", numeric(row.get("low"))),
            *(number_cell(row.get(key)) for key in shown),
        ]
        for row in rows
    ]
    names = [short_name(key, keys) for key in keys] or ["configuration"]
    return table([*names, f"capacity, {unit}", "95 % interval", *shown.values()], cells)


def _probe_table(rows: Sequence[Row], unit: str) -> Markup:
    """All probes of all configurations, folded."""
    probes = [(row["name"], probe) for row in rows for probe in row.get("probes") or ()]
    keys = list(dict.fromkeys(key for _, probe in probes for key in probe if is_known(probe[key])))
    keys = [key for key in keys if key not in _UNSHOWN]
    names = [] if len(rows) == 1 else ["configuration"]
    cells = [
        [
            *(Cell(str(name)) for _ in names),
            number_cell(probe.get("value")),
            Cell("holds", tone="good") if probe.get("holds") else Cell("missed", tone="bad"),
            Cell(str(probe.get("verdict") or "–"), tone=_VERDICTS.get(str(probe.get("verdict")), "plain")),
            *(number_cell(probe.get(key)) for key in keys),
            Cell(str(probe.get("folder") or "")),
        ]
        for name, probe in probes
    ]
    heads = [*names, unit, "SLO", "verdict", *(key.replace("_", " ") for key in keys), "folder"]
    return folded(f"All {count(len(cells), 'probe')}", table(heads, cells)) if cells else Markup("")


def _named(rows: Sequence[Row]) -> tuple[list[str], list[Row]]:
    """The overrides that differ between rows, and the rows with a `name`: the values of these overrides, or the label
    where no override differs, or an empty text for a single row."""
    every: list[Row] = [row.get("overrides") or {} for row in rows]
    keys = list(dict.fromkeys(str(key) for each in every for key in each))
    keys = [key for key in keys if len({value_text(each.get(key)) for each in every}) > 1]
    own = [{key: each.get(key) for key in keys} for each in every]
    labels = [""] if len(rows) == 1 else [str(row.get("label")) for row in rows]  # one needs no name
    named = [parameter_label(each, keys) if keys else label for each, label in zip(own, labels, strict=True)]
    return keys, [{**row, "overrides": each, "name": name} for row, each, name in zip(rows, own, named, strict=True)]


def _limits(document: Mapping[str, Any]) -> dict[str, float]:
    """The limits in ms by latency, and the percentile that they are for."""
    return {str(name): float(value) for name, value in (document.get("slo") or {}).items() if is_known(value)}


def _notes(folder: Path) -> dict[str, list[str]]:
    """The notes of each configuration's probe at the lowest load, by folder; other probes may be overloaded."""
    found = {}
    for job in sorted(path.parent for path in folder.glob(f"*/{CAPACITY}")) or [folder]:
        probes = [read_document(path) for path in job.rglob(SUMMARY)]
        lightest = min(probes, key=lambda probe: float(probe.get("offered_rate") or 0), default={})
        found[job.name] = [str(note) for note in lightest.get("notes") or ()]
    return found


def _first_summary(folder: Path) -> Mapping[str, Any]:
    """The summary of the first probe whose folder has one; empty without any."""
    path = min(folder.rglob(SUMMARY), default=None)
    return {} if path is None else read_document(path)


def _setting(value: Any) -> Cell:
    """An override, which may be the text of a number."""
    text = value_text(value)
    return Cell(text, float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else None)


def _shown(row: Row, key: str) -> str:
    value = row.get(key)
    return number(value if is_known(value) else None)
