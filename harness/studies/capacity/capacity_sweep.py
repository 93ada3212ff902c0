"""The end of a sweep of capacities: one table, the best configuration, and the run that confirms it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.config import load
from harness.errors import TwinServeError
from harness.results.summary import number, percent
from harness.studies.capacity.capacity import conclude
from harness.studies.capacity.keys import counts_servers, unit_of
from harness.studies.capacity.row import Row, gpus_text, order_text, range_text, slo_text, widened_text
from harness.studies.capacity.table import print_table, read_document, write_document

_MOST_NAMED = 5  # fleets that a sentence names beside the best; the table has all


def write_capacities(folders: Sequence[Path], out_folder: Path, *, confirms: bool = True) -> None:
    """Combine the searches in `folders` in `out_folder`: capacity.json, capacity.csv, and the table on the console. Of
    the best configuration what follows a search is run, too, if `confirms` is set.

    Raises:
        TwinServeError: a folder holds no capacity, or searches of different keys.
        KeyboardInterrupt: the confirmation was interrupted; the table is written.
    """
    console = Console()
    documents = [read_document(folder) for folder in folders]
    keys = sorted({document["over"] for document in documents})
    if len(keys) > 1:
        raise TwinServeError(f"capacities over {' and '.join(keys)} do not compare")
    rows = with_labels([document["rows"][0] for document in documents])
    best = best_of(rows)
    document: dict[str, Any] = {
        **documents[0],
        "question": f"which configuration {aim_of(rows, keys[0])} with {slo_text(documents[0]['slo'])}",
        "rows": rows,
        "best": best,
        "sentence": best_sentence(rows, best, keys[0]),
        "command": None if best is None else documents[best]["command"],
    }
    write_document(document, out_folder)
    if best is not None:
        config = load(folders[best] / "config.yaml")
        if confirms and (text := conclude(config, rows[best], folders[best], console)):
            document["sentence"] += text
            write_document(document, out_folder)
    print_table(document, console)
    console.print(f"results: {out_folder}", highlight=False, soft_wrap=True)


def with_labels(rows: Sequence[Row]) -> list[Row]:
    """The rows, labelled by the overrides in which they differ."""
    keys = dict.fromkeys(key for row in rows for key in row["overrides"])
    differ = [key for key in keys if len({row["overrides"].get(key) for row in rows}) > 1]
    labels = [{key: row["overrides"][key] for key in differ if key in row["overrides"]} for row in rows]
    texts = [" ".join(f"{key}={value}" for key, value in label.items()) for label in labels]
    ends = [" (interrupted)" if row.get("interrupted") else "" for row in rows]
    return [{**row, "label": (text or row["label"]) + end} for row, text, end in zip(rows, texts, ends, strict=True)]


def best_of(rows: Sequence[Row]) -> int | None:
    """The row with the lowest cost per token where GPUs of different known prices compare, and otherwise the one with
    the highest capacity per GPU; None without capacities."""
    known = [index for index, row in enumerate(rows) if row["capacity"] is not None]
    if _prices_differ(rows):
        return min(known, key=lambda index: rows[index]["cost_per_million_tokens"], default=None)
    return max(known, key=lambda index: rows[index]["per_gpu"] or -rows[index]["num_gpus"], default=None)


def _prices_differ(rows: Sequence[Row]) -> bool:
    prices = {row["price_per_gpu_hour"] for row in rows if row["capacity"] is not None}
    return len(prices) > 1 and None not in prices


def aim_of(rows: Sequence[Row], key: str) -> str:
    """What `best_of` looks at, in words."""
    if _prices_differ(rows):
        return "costs least per token"
    if counts_servers(key):
        rates = {row["rate"] for row in rows}
        (rate,) = rates if len(rates) == 1 else (None,)
        return f"needs the fewest GPUs{f' at {number(rate)} requests/s' if rate else ''}"
    return f"bears the highest {key}{' per GPU' if _gpus_differ(rows) else ''}"


def _gpus_differ(rows: Sequence[Row]) -> bool:
    return len({row["num_gpus"] for row in rows}) > 1


def best_sentence(rows: Sequence[Row], best: int | None, key: str) -> str:
    """Which row is best, and by how much."""
    if best is not None and any(row.get("servers") for row in rows):
        return _fleets_sentence(rows, best, key)
    if best is None:
        return "No configuration has a capacity: the SLO held, or failed, at every load tried."
    row = rows[best]
    per_gpu = " per GPU" if any(each["num_gpus"] > 1 for each in rows) else ""
    text = f"Best: {row['label']} with {number(row['per_gpu'])} {unit_of(key)}{per_gpu}"
    text += f" (95 % interval of the capacity {range_text(row)})"
    others = [each for index, each in enumerate(rows) if index != best and each["capacity"] is not None]
    if not others:
        return f"{text}.{widened_text(row)}"
    others.sort(key=lambda each: -each["per_gpu"])
    first, last = others[0], others[-1]
    text += f", {_more(row, first)} than the second ({first['label']})"
    if len(others) > 1:
        text += f" and {_more(row, last)} than the last ({last['label']})"
    return f"{text}{_equals_text(row, others)}.{widened_text(row)}{order_text(row, first)}"


def _equals_text(row: Row, others: Sequence[Row]) -> str:
    """The other configurations whose intervals, per GPU, reach up to that of the best."""
    lowest = row["low"] / row["num_gpus"]
    equals = [each["label"] for each in others if each["high"] / each["num_gpus"] >= lowest]
    return f". The intervals do not tell it apart from: {_some(equals, 3)}" if equals else ""


def _some(texts: Sequence[str], most: int) -> str:
    shown = texts if len(texts) <= most else [*texts[:most], f"{len(texts) - most} more"]
    return "; ".join(shown)


def _fleets_sentence(rows: Sequence[Row], best: int, key: str) -> str:
    """Such as `8 servers of 2 H100 behind prefix_affinity hold 49 requests/s; router=round_robin 15`."""
    row, of_servers = rows[best], counts_servers(key)
    others = [each for index, each in enumerate(rows) if index != best]
    known = sorted((each for each in others if each["capacity"] is not None), key=lambda each: -(each["per_gpu"] or 0))
    if of_servers:
        load = f"{number(row['rate'])} requests/s" if row["rate"] else "it"
        text = f"{row['servers']} {'holds' if row['capacity'] == 1 else 'hold'} {load}"
        text += f" ({gpus_text(row)})"
        parts = [f"{each['label']} {number(each['capacity'])} servers ({gpus_text(each)})" for each in known]
    else:
        per_gpu = _gpus_differ(rows)
        best_per_gpu = f", {number(row['per_gpu'])} per GPU, which is the best" if per_gpu else ""
        text = f"{row['servers'] or row['label']} hold {number(row['capacity'])} {unit_of(key)}{best_per_gpu}"
        parts = [
            f"{each['label']} {number(each['capacity'])}" + (f" ({number(each['per_gpu'])} per GPU)" if per_gpu else "")
            for each in known
        ]
    parts += [f"{each['label']} no capacity" for each in others if each["capacity"] is None]
    listed = f"; {_some(parts, _MOST_NAMED)}" if parts else ""
    return f"{text}{listed}{'' if of_servers else _equals_text(row, known)}."


def _more(row: Row, other: Row) -> str:
    ratio = row["per_gpu"] / other["per_gpu"] - 1
    return f"{percent(ratio)} more" if ratio >= 0 else f"{percent(-ratio)} less"
