"""Capacities in files and in the terminal."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.documents import DocumentError, read_json
from harness.errors import TwinServeError
from harness.results.measures.step_times import mixed_text
from harness.results.metrics import json_ready
from harness.results.stored.files import CAPACITY, write_whole
from harness.results.summary import number
from harness.studies.capacity.row import Row, range_text

CAPACITY_TABLE = "capacity.csv"
_COLUMNS = {
    "capacity": "capacity",
    "range": "95 % interval",
    "per_gpu": "per\nGPU",
    "cost_per_million_tokens": "$ per M\ntokens",
    "joules_per_token": "J per\ntoken",
    "interactivity": "tok/s\nper user",
}
_NESTED = ("overrides", "probes", "confirmed", "model_error", "one_fewer", "twice")


def write_document(document: Mapping[str, Any], folder: Path) -> None:
    """Write capacity.json and capacity.csv; each is whole or as before, and capacity.json comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(json_ready(document), indent=2, allow_nan=False) + "\n"
    rows = [{key: value for key, value in row.items() if key not in _NESTED} for row in document["rows"]]
    write_whole(folder / CAPACITY_TABLE, lambda path: path.write_text(_csv_text(rows), encoding="utf-8"))
    write_whole(folder / CAPACITY, lambda path: path.write_text(text, encoding="utf-8"))


def _csv_text(rows: Sequence[Row]) -> str:
    text = StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def read_document(folder: Path) -> dict[str, Any]:
    """The capacity.json in a folder; raises TwinServeError where there is none, or it is something else."""
    try:
        document = read_json(folder / CAPACITY)
        if not isinstance(document, dict) or not document["rows"] or not isinstance(document["unit"], str):
            raise TwinServeError(f"{folder / CAPACITY}: not the result of task=capacity")
    except (DocumentError, OSError, KeyError) as error:
        raise TwinServeError(f"{folder / CAPACITY}: not the result of task=capacity ({error})") from None
    return document


def capacity_text(folder: Path) -> str:
    """The capacity in a folder, in a few words."""
    document = read_document(folder)
    row = document["rows"][0]
    value = "none" if row["capacity"] is None else number(row["capacity"])
    return f"{value} {document['unit']}  ({range_text(row)})"


def print_table(document: Mapping[str, Any], console: Console, tried: Sequence[Row] | None = None) -> None:
    """The capacities, the best first, the sentence and the `vllm serve` line; before them, where step times of what was
    `tried`, by default of all rows, are of two kinds, that they are."""
    rows: Sequence[Row] = document["rows"]
    if mixed := mixed_text(row.get("cost_source") for row in (rows if tried is None else tried)):
        console.print(Text(f"! {mixed}", style="bold"))
    if len(rows) > 1:
        console.print(Text(f"Capacities in {document['unit']}", style="bold"))
        console.print(_table(rows))
    console.print(Text(document["sentence"]), soft_wrap=False)
    if document["command"]:
        console.print(Text(document["command"], style="cyan"), soft_wrap=True)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold")
    shown = [name for name in _COLUMNS if name == "range" or any(row[name] is not None for row in rows)]
    if all(row["num_gpus"] == 1 for row in rows):
        shown = [name for name in shown if name != "per_gpu"]
    for name in shown:
        table.add_column(_COLUMNS[name], justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: -(row["per_gpu"] or 0.0)):
        cells = [range_text(row) if name == "range" else number(row[name]) for name in shown]
        table.add_row(Text(row["label"].replace(" ", "\n") if len(row["label"]) > 40 else row["label"]), *cells)
    return table
