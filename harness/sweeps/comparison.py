"""The comparison of many runs: its table in files and in the terminal, and its figures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.errors import TwinServeError
from harness.plots import write_comparison_plots
from harness.plots.compare import parameter_label, parameter_title, short_name, tail_percentile, value_label
from harness.plots.latency import latency_curves
from harness.results.files import REQUESTS, read_requests, write_whole
from harness.results.summary import number, percent
from harness.sweeps.combine import combine
from harness.sweeps.notes import notes_on

_TIMES = ("arrival_time", "ttft", "tpot", "e2el")
_MAX_ROWS = 40
_MAX_PARAMETER_COLUMNS = 4


class Comparison(NamedTuple):
    """The files of a comparison, and the names of the runs that are left out because they failed or are damaged."""

    paths: list[Path]
    left_out: list[str]


def write_comparison(folders: Sequence[Path], out_folder: Path, console: Console | None = None) -> Comparison:
    """Compare results: comparison.parquet, comparison.csv and the figures in `out_folder`, and a table on the console.

    A folder with unreadable tables counts as failed.
    """
    runs = combine(folders)
    parameters = runs.attrs["parameters"]
    if parameters:
        runs = runs.sort_values(parameters, key=_sort_key, kind="stable")
    curves = {}
    for index, row in runs[runs["status"] != "failed"].iterrows():
        try:
            requests = read_requests(Path(row["folder"]), ["status", *_TIMES])
            _check(requests, row["folder"])
        except TwinServeError as error:  # a damaged result does not stop the comparison
            runs.loc[index, ["status", "error"]] = ["failed", str(error)]
        else:
            curves[row["run"]] = latency_curves(requests, row.to_dict())
    out_folder.mkdir(parents=True, exist_ok=True)
    paths = [out_folder / "comparison.parquet", out_folder / "comparison.csv"]
    write_whole(paths[0], lambda path: _parquet_ready(runs).to_parquet(path, index=False))
    write_whole(paths[1], lambda path: runs.to_csv(path, index=False))
    if curves:
        paths += write_comparison_plots(runs, parameters, curves, out_folder)
    _print_comparison(runs, parameters, console or Console())
    return Comparison(paths, runs.loc[runs["status"] == "failed", "run"].tolist())


def _check(requests: pd.DataFrame, folder: str) -> None:
    """Raises TwinServeError unless all times are numbers, and those of finished requests are there."""
    finished = (requests["status"] == "finished").to_numpy()
    for name in _TIMES:
        values = requests[name]
        if not pd.api.types.is_float_dtype(values):
            raise TwinServeError(f"{folder}: {name} in {REQUESTS} is not of numbers")
        seconds = values.to_numpy(dtype=np.float64)
        known = seconds[finished] if name != "tpot" else seconds[~np.isnan(seconds)]  # one token has no TPOT
        if not (np.isfinite(known) & (known >= 0)).all():
            raise TwinServeError(f"{folder}: {name} of finished requests in {REQUESTS} is not always a number >= 0")


def _sort_key(column: pd.Series) -> pd.Series:
    """Ranks: numbers by value, then text, then what is missing."""
    numbers = pd.to_numeric(column, errors="coerce").astype(float)
    kinds = np.where(numbers.notna(), 0, np.where(column.notna(), 1, 2)).tolist()
    keys = list(zip(kinds, numbers.fillna(0.0), column.astype(str), strict=True))
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return pd.Series([rank[key] for key in keys], index=column.index)


def _print_comparison(runs: pd.DataFrame, parameters: Sequence[str], console: Console) -> None:
    alive = runs[runs["status"] != "failed"]
    if len(alive):
        simulated = alive["simulated"].astype(bool)
        console.print(Text(f"{simulated.sum()} runs SIMULATED, {(~simulated).sum()} MEASURED", style="bold"))
        console.print(_comparison_table(alive, parameters, mixed=simulated.nunique() > 1))
        for note in notes_on(alive, parameters):
            console.print(Text(note, style="dim"))
    _print_left_out(runs, console)


def _comparison_table(alive: pd.DataFrame, parameters: Sequence[str], mixed: bool) -> Table:
    """Runs in the given order, or those with the highest throughput where they are too many for a screen."""
    columns = {name: title for name, title in _compared(tail_percentile(list(alive.columns))).items() if name in alive}
    apart = 0 < len(parameters) <= _MAX_PARAMETER_COLUMNS
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    heads = [short_name(name, parameters) for name in parameters] if apart else [parameter_title(parameters)]
    for name in heads:
        table.add_column("\n".join(textwrap.wrap(name.replace("_", "_ "), 10)).replace("_ ", "_"))
    if mixed:
        table.add_column("")
    for title in columns.values():
        table.add_column(title, justify="right", no_wrap=True)
    if len(alive) > _MAX_ROWS:
        alive = alive.sort_values("output_throughput", ascending=False).head(_MAX_ROWS)
    for row in alive.to_dict("records"):
        labels = [value_label(row[name]) for name in parameters] if apart else [parameter_label(row, parameters)]
        if mixed:
            labels.append("simulated" if row["simulated"] else "measured")
        table.add_row(*map(Text, labels), *(_cell(name, row[name]) for name in columns))
    return table


def _compared(tail: str) -> dict[str, str]:
    """Column heads of the combined table."""
    return {
        "output_throughput": "output\ntok/s",
        "median_ttft_ms": "TTFT ms\np50",
        f"{tail}_ttft_ms": tail,
        "median_tpot_ms": "TPOT ms\np50",
        f"{tail}_tpot_ms": tail,
        "mean_kv_cache_usage": "KV\nuse",
        "preemptions": "pre-\nempted",
        "prefix_cache_hit_rate": "cache\nhits",
    }


def _cell(name: str, value: float) -> str:
    if name in ("mean_kv_cache_usage", "prefix_cache_hit_rate"):
        return percent(value)
    return f"{value:,.0f}" if name == "preemptions" else number(value)


def _print_left_out(runs: pd.DataFrame, console: Console) -> None:
    failed, interrupted = runs[runs["status"] == "failed"], runs[runs["status"] == "interrupted"]
    alive = len(runs) - len(failed)
    if alive > _MAX_ROWS:
        text = f"the {_MAX_ROWS} of {alive} runs with the highest output throughput; all are in comparison.csv"
        console.print(Text(text, style="dim"))
    if len(interrupted):
        console.print(Text(f"! interrupted before the end: {', '.join(interrupted['run'])}", style="yellow"))
    for _, row in failed.iterrows():
        console.print(Text(f"! {row['run']} failed: {row['error']}", style="red"))


def _parquet_ready(runs: pd.DataFrame) -> pd.DataFrame:
    """Parquet columns have one type: mixed ones, such as a limit that is a number or a word, become text."""
    mixed = [name for name in runs if pd.api.types.infer_dtype(runs[name], skipna=True).startswith("mixed")]
    return runs.assign(**{str(name): runs[name].map(str, na_action="ignore") for name in mixed})
