"""The table of a comparison in the terminal: context once above it, a row per configuration and load, 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.figures.drawn_metrics import tail_percentile
from harness.figures.labels import parameter_title, short_name, value_label
from harness.results.measures.slo import LIMITED
from harness.results.measures.step_times import mixed_text
from harness.results.measures.unserved import unserved_text
from harness.results.summary import number, percent
from harness.studies.comparison.notes import notes_on

_MAX_ROWS, _MAX_NOTES = 40, 6
_LABEL_WIDTH = 24  # at most, where there are many columns
_OVERLOADED, _UNSERVED = " ×", " !"
_ATTAINED = {f"slo_{name}_attainment": f"{name.upper()}\nin SLO" for name in LIMITED}
_SHARES = ("mean_kv_cache_usage", "prefix_cache_hit_rate", "goodput_share", *_ATTAINED)


class _Column(NamedTuple):
    """A column as text, with its width."""

    head: str
    cells: list[str]

    @property
    def width(self) -> int:
        lines = [line for text in (self.head, *self.cells) for line in text.split("\n")]
        return max(map(len, lines))


def print_comparison(runs: pd.DataFrame, table: pd.DataFrame, console: Console) -> None:
    """Print the configurations of `table`, what they share, and which of `runs` are left out or were interrupted."""
    if len(table):
        _print_context(table, console)
        _print_rows(table, console)
        _print_notes(table, console)
        _print_notes_of_runs(runs, console)
    _print_left_out(runs, console)


def _print_context(table: pd.DataFrame, console: Console) -> None:
    simulated = table["simulated"].astype(bool)
    counts = [int(table["num_runs"][kind].sum()) for kind in (simulated, ~simulated)]
    console.print(Text(f"{counts[0]} runs SIMULATED, {counts[1]} MEASURED", style="bold"))
    if mixed := mixed_text(table.get("cost_source", ())):
        console.print(Text(f"! {mixed}", style="bold"))
    context = " · ".join(f"{name} {value}" for name, value in table.attrs["fixed"].items())
    console.print(Text(context, style="dim"))


def _print_rows(table: pd.DataFrame, console: Console) -> None:
    shown = table
    if len(table) > _MAX_ROWS:
        shown = table.sort_values("output_throughput", ascending=False).head(_MAX_ROWS)
    rows = shown.to_dict("records")
    first = [_label_column(rows, table, repeated=len(shown) < len(table)), *_load_columns(rows, table)]
    room = console.width - sum(min(column.width, _LABEL_WIDTH) + 1 for column in first)
    columns = []
    for group in _metric_columns(rows, table):
        needed = sum(column.width + 1 for column in group)
        if needed <= room:
            columns += group
            room -= needed
    drawn = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for position, column in enumerate([*first, *columns]):
        drawn.add_column(Text(column.head), justify="right" if position else "left", no_wrap=bool(position))
    for cells in zip(*(column.cells for column in [*first, *columns]), strict=True):
        drawn.add_row(*map(Text, cells))
    console.print(drawn)


def _label_column(rows: Sequence[Mapping[Any, Any]], table: pd.DataFrame, *, repeated: bool) -> _Column:
    """Labels of the configurations, each once where its rows follow each other."""
    labels = [str(row["label"]) for row in rows]
    kinds = [row["simulated"] for row in rows]
    if table["simulated"].nunique() > 1:
        labels = [f"{label} ({'simulated' if kind else 'measured'})" for label, kind in zip(labels, kinds, strict=True)]
    if table.attrs["load"] is None:
        labels = [label + _mark(row) for label, row in zip(labels, rows, strict=True)]
    before = [None, *labels[:-1]]
    cells = [label if repeated or label != last else "" for label, last in zip(labels, before, strict=True)]
    return _Column(parameter_title(table.attrs["parameters"]), cells)


def _load_columns(rows: Sequence[Mapping[Any, Any]], table: pd.DataFrame) -> list[_Column]:
    load = table.attrs["load"]
    if load is None:
        return []
    values = [f"{value_label(row[load])}{_mark(row)}" for row in rows]
    return [_Column(short_name(load, [load]).replace("_", " "), values)]


def _mark(row: Mapping[Any, Any]) -> str:
    overloaded = _OVERLOADED if row.get("verdict") == "overloaded" else ""
    return overloaded + (_UNSERVED if unserved_text(row) else "")


def _metric_columns(rows: Sequence[Mapping[Any, Any]], table: pd.DataFrame) -> list[list[_Column]]:
    """Groups of columns, the most wanted first; a metric is shown with its difference or not at all."""
    tail = tail_percentile(list(map(str, table.columns)))
    heads = {
        "output_throughput": "output\ntok/s",
        f"{tail}_ttft_ms": f"TTFT ms\n{tail}",
        f"{tail}_tpot_ms": f"TPOT ms\n{tail}",
        "slo_met": "SLO",
        "goodput_share": "good-\nput",
        **_ATTAINED,
        "mean_kv_cache_usage": "KV\nuse",
        "preemptions": "pre-\nempted",
        "median_ttft_ms": "TTFT ms\np50",
        "median_tpot_ms": "TPOT ms\np50",
        "prefix_cache_hit_rate": "cache\nhits",
    }
    known = {name: head for name, head in heads.items() if name in table and table[name].notna().any()}
    groups = []
    for name, head in known.items():
        group = [_Column(head, [_cell(name, row) for row in rows])]
        if f"{name}_vs_baseline_pct" in table:
            group.append(_Column("\nΔ", [_difference(row, name, table) for row in rows]))
        groups.append(group)
    return groups


def _cell(name: str, row: Mapping[Any, Any]) -> str:
    value = row[name]
    if name == "slo_met":
        return "–" if value is None or value != value else "pass" if value else "fail"
    if name in _SHARES:
        return percent(value)
    if name == "preemptions":
        return f"{value:,.0f}"
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    repeated = row["num_runs"] > 1 and value and low is not None and low == low
    if repeated:
        return number(value) + f"±{(high - low) / 2 / value:.0%}"  # type: ignore[operator]
    return number(value) + ("?" if _is_too_short(name, row) else "")


def _difference(row: Mapping[Any, Any], name: str, table: pd.DataFrame) -> str:
    change = row[f"{name}_vs_baseline_pct"]
    if row["label"] == table.attrs["baseline"] or change != change:
        return ""
    return f"{change:+.0f}%" if abs(change) < 1000 else f"{1 + change / 100:,.0f}x"


def _is_too_short(name: str, row: Mapping[Any, Any]) -> bool:
    """Whether the latency of a row that stands for a single run has no interval with two ends."""
    ends = f"{name}_low", f"{name}_high"
    if row["num_runs"] > 1 or row.get("verdict") == "overloaded" or not set(ends) <= row.keys():
        return False
    return pd.notna(row[name]) and any(pd.isna(row[end]) for end in ends)


def _print_notes_of_runs(runs: pd.DataFrame, console: Console) -> None:
    notes = runs.attrs.get("notes", [])
    for note in notes[:_MAX_NOTES]:
        console.print(Text(f"! {note}", style="dim"))
    if len(notes) > _MAX_NOTES:
        console.print(Text(f"! and {len(notes) - _MAX_NOTES} more notes of runs, which are on the page", style="dim"))


def _print_notes(table: pd.DataFrame, console: Console) -> None:
    for note in notes_on(table, table.attrs["parameters"]):
        console.print(Text(note, style="dim"))
    notes = []
    if table.attrs["baseline"] and table["label"].nunique() > 1:
        notes.append(f"Δ: from {table.attrs['baseline']} (report.baseline)")
    if table["num_runs"].max() > 1:
        notes.append("±: half the 95% interval of the mean over seeds")
    rows = table.to_dict("records")
    if any(_is_too_short(name, row) for row in rows for name in map(str, table)):
        notes.append("?: the run is too short to say how sure that is")
    if "verdict" in table and (table["verdict"] == "overloaded").any():
        notes.append("×: overloaded, so latencies tell how long the run was")
    if notes:
        console.print(Text("; ".join(notes), style="dim"))
    for row in rows:
        if unserved := unserved_text(row):
            console.print(Text(f"{_UNSERVED.strip()} {row['label']}: {unserved}", style="yellow"))
    if len(table) > _MAX_ROWS:
        text = f"the {_MAX_ROWS} of {len(table)} rows with the highest output throughput; all are in configurations.csv"
        console.print(Text(text, style="dim"))


def _print_left_out(runs: pd.DataFrame, console: Console) -> None:
    failed, interrupted = runs[runs["status"] == "failed"], runs[runs["status"] == "interrupted"]
    if len(interrupted):
        console.print(Text(f"! interrupted before the end: {', '.join(interrupted['run'])}", style="yellow"))
    for _, row in failed.iterrows():
        console.print(Text(f"! {row['run']} failed: {row['error']}", style="red"))
