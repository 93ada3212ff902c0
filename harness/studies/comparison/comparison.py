"""The comparison of many runs: its tables in files and in the terminal, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console

from harness.config.schema.tasks.plotting import AS_USUAL, PlotConfig
from harness.errors import TwinServeError
from harness.figures import write_comparison_charts
from harness.figures.charts.latency import curve_key, latency_curves
from harness.figures.drawn_metrics import tail_percentile
from harness.figures.pages import write_comparison_page
from harness.figures.pages.notes import notes_of
from harness.results.stored.files import REQUESTS, read_requests, write_whole
from harness.results.tables import Floats
from harness.studies.comparison.combine import combine
from harness.studies.comparison.comparison_table import print_comparison
from harness.studies.comparison.repeats import configurations, with_differences
from simulator.table import Table

_TIMES = ("arrival_time", "ttft", "tpot", "e2el")
Curves = dict[str, dict[str, Floats]]


class Comparison(NamedTuple):
    """The files of a comparison, and the names of the runs that are left out because they failed or are damaged."""

    paths: list[Path]
    left_out: list[str]


class Compared(NamedTuple):
    """Runs and what is drawn of them.

    Attributes:
        runs: a row per run, those left out with status failed.
        table: a row per configuration and load.
        curves: by `curve_key` and latency, its `CURVE_PERCENTILES` in s, the mean over repetitions.
    """

    runs: pd.DataFrame
    table: pd.DataFrame
    curves: Curves


def write_comparison(
    folders: Sequence[Path],
    out_folder: Path,
    plot: PlotConfig = AS_USUAL,
    baseline: str | int | None = None,
    console: Console | None = None,
) -> Comparison:
    """Compare results: tables, a page and the figures that are asked for in `out_folder`, and a table on the console.

    comparison.parquet and comparison.csv have a row per run; configurations.csv has one per configuration and load,
    with means and intervals over seeds, and differences from the baseline in percent.

    Raises:
        ConfigError: no configuration is called like the baseline.
    """
    runs, table, curves = compare_folders(folders, baseline)
    out_folder.mkdir(parents=True, exist_ok=True)
    paths = [out_folder / name for name in ("comparison.parquet", "comparison.csv", "configurations.csv")]
    write_whole(paths[0], lambda path: _parquet_ready(runs).to_parquet(path, index=False))
    write_whole(paths[1], lambda path: runs.to_csv(path, index=False))
    write_whole(paths[2], lambda path: table.to_csv(path, index=False))
    if curves and (plot.formats or plot.has_axes):
        paths += write_comparison_charts(table, curves, out_folder, plot)
    paths.append(write_comparison_page(runs, table, out_folder))
    print_comparison(runs, table, console or Console())
    return Comparison(paths, runs.loc[runs["status"] == "failed", "run"].tolist())


def compare_folders(
    folders: Sequence[Path], baseline: str | int | None = None, names: Sequence[str] | None = None
) -> Compared:
    """The runs in `folders` as `read_compared` has them, and how configurations differ from the baseline.

    Raises:
        ConfigError: no configuration is called like the baseline.
    """
    runs, table, curves = read_compared(folders, names)
    tail = tail_percentile(list(map(str, table.columns)))
    metrics = ("output_throughput", f"{tail}_ttft_ms", f"{tail}_tpot_ms")
    table.attrs["baseline"] = None
    if len(table) and table["label"].nunique() > 1:
        table = with_differences(table, baseline, metrics)
    return Compared(runs, table, curves)


def read_compared(folders: Sequence[Path], names: Sequence[str] | None = None) -> Compared:
    """The runs in `folders`, sorted by configuration and load, with `notes` in attrs, what is to be known of
    them; a folder with unreadable tables counts as failed.

    names: of the runs; by default their paths as seen from the folder that holds all of them.
    """
    runs = combine(folders, names)
    attrs = runs.attrs
    attrs["first"] = next(iter(runs.loc[runs["status"] != "failed", "label"]), None)
    keys = [*attrs["parameters"], *([attrs["load"]] if attrs["load"] else []), "seed"]
    runs = runs.sort_values(keys, key=_sort_key, kind="stable")
    found: dict[str, list[dict[str, Floats]]] = {}
    for index, row in runs[runs["status"] != "failed"].iterrows():
        try:
            requests = read_requests(Path(row["folder"]), ["status", *_TIMES])
            _check(requests, row["folder"], by_client=row.get("sampled_steps") is True)
        except TwinServeError as error:  # a damaged result does not stop the comparison
            runs.loc[index, ["status", "error"]] = ["failed", str(error)]
        else:
            key = curve_key(row.to_dict(), attrs["load"])
            found.setdefault(key, []).append(latency_curves(requests, row.to_dict()))
    runs.attrs.update(attrs)
    runs.attrs["notes"] = notes_of(runs)
    return Compared(runs, configurations(runs), {key: _mean(curves) for key, curves in found.items()})


def _mean(curves: Sequence[dict[str, Floats]]) -> dict[str, Floats]:
    """The mean of each percentile over the repetitions that have the latency."""
    names = dict.fromkeys(name for curve in curves for name in curve)
    return {name: np.mean([curve[name] for curve in curves if name in curve], axis=0) for name in names}


def _check(requests: Table, folder: str, *, by_client: bool) -> None:
    """Raises TwinServeError unless all times are numbers, and those of finished requests are there: one token has no
    TPOT, and a client that gets an answer in one piece does not see its first token."""
    may_lack = ("tpot", "ttft") if by_client else ("tpot",)
    finished = (requests["status"] == "finished").to_numpy()
    for name in _TIMES:
        values = requests[name].to_numpy()
        if not pd.api.types.is_float_dtype(values):
            raise TwinServeError(f"{folder}: {name} in {REQUESTS} is not of numbers")
        seconds = values.astype(np.float64)
        known = seconds[~np.isnan(seconds)] if name in may_lack else seconds[finished]
        if not (np.isfinite(known) & (known >= 0)).all():
            raise TwinServeError(f"{folder}: {name} of finished requests in {REQUESTS} is not always a number >= 0")


def _sort_key(column: pd.Series) -> pd.Series:
    """Ranks: numbers by value, then text, then what is missing."""
    numbers = pd.to_numeric(column, errors="coerce").astype(float)
    kinds = np.where(numbers.notna(), 0, np.where(column.notna(), 1, 2)).tolist()
    keys = list(zip(kinds, numbers.fillna(0.0), column.astype(str), strict=True))
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return pd.Series([rank[key] for key in keys], index=column.index)


def _parquet_ready(runs: pd.DataFrame) -> pd.DataFrame:
    """Parquet columns have one type: mixed ones, such as a limit that is a number or a word, become text."""
    mixed = [name for name in runs if pd.api.types.infer_dtype(runs[name], skipna=True).startswith("mixed")]
    return runs.assign(**{str(name): runs[name].map(str, na_action="ignore") for name in mixed})
