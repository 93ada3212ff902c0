"""The page of task=search where the objective is a number of the summary, and the trials of any search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.figures.chart import is_known
from harness.figures.charts.capacity import trials_chart
from harness.figures.labels import short_name
from harness.figures.pages.elements import Cell, Markup, code, figures, section, table, tiles, verdict
from harness.figures.pages.page import Page
from harness.figures.pages.reproduction import read_document, reproduction, settings_of
from harness.figures.pages.words import count, number_cell, numeric, value_text
from harness.results.measures.step_times import mixed_text
from harness.results.stored.files import SEARCH, SUMMARY
from harness.results.summary import number

Row = Mapping[str, Any]


def search_page(folder: Path) -> Page:
    """The page of the search in `folder`.

    Raises:
        TwinServeError: its search.json cannot be read.
    """
    document = read_document(folder / SEARCH)
    rows = _rows(document)
    best, objective = best_row(document, rows), str(document.get("objective") or "objective")
    told = folder / str(best.get("folder")) / SUMMARY if best else None
    summary = read_document(told) if told is not None and told.is_file() else {}
    sentence = str(document.get("sentence") or "")
    given_up = sum(not is_known(row.get("value")) for row in rows)
    shown = [(objective, number(numeric(best.get("value"))), "")] if best else []
    shown += [("Trials", str(len(rows)), ""), ("Given up", str(given_up), "")]
    question = str(document.get("question") or "Which configuration is best?")
    return Page(
        title=f"Search over {count(len(rows), 'configuration')}",
        badges=[("plain", "SEARCH")],
        question=f"{question[:1].upper()}{question[1:]}.",
        parts=[
            mixed_verdict(rows),
            verdict("good" if best else "bad", "Best:" if best else "No trial came to an end.", sentence),
            code(str(document.get("command") or "")),
            tiles(shown),
            trials(document),
            reproduction(folder, summary.get("environment") or {}, settings_of(folder) or summary.get("config") or {}),
        ],
    )


def mixed_verdict(rows: Sequence[Row]) -> Markup:
    """A warning where step times of `rows` are of two kinds, from the roofline and of measured kernels."""
    mixed = mixed_text(row.get("cost_source") for row in rows)
    return verdict("warn", "Step times of two kinds:", f"{mixed}.") if mixed else Markup("")


def trials(document: Mapping[str, Any]) -> Markup:
    """The section on what was tried, in order: the objective of each trial, and why others have none."""
    rows, objective = _rows(document), str(document.get("objective") or "objective")
    known = [(place, row) for place, row in enumerate(rows, 1) if is_known(row.get("value"))]
    keys = list(dict.fromkeys(str(key) for row in rows for key in row.get("overrides") or {}))
    cells = [
        [
            number_cell(place),
            *(Cell(value_text((row.get("overrides") or {}).get(key))) for key in keys),
            number_cell(row.get("value")),
            Cell(str(row.get("given_up") or ""), tone="warn"),
            Cell(str(row.get("folder") or "")),
        ]
        for place, row in enumerate(rows, 1)
    ]
    heads = ["trial", *(short_name(key, keys) for key in keys), objective, "given up", "folder"]
    drawn = trials_chart(known, objective, document.get("direction") == "minimize") if known else None
    return section("Trials", figures(drawn), table(heads, cells))


def _rows(document: Mapping[str, Any]) -> list[Row]:
    return [row for row in document.get("rows") or () if isinstance(row, dict)]


def best_row(document: Mapping[str, Any], rows: Sequence[Row]) -> Row | None:
    """The row that a search or a sweep of capacities names as the best; None where it names none."""
    index = document.get("best")
    return rows[index] if isinstance(index, int) and 0 <= index < len(rows) else None
