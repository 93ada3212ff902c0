"""The summary of a run in the terminal, and the combined table of many runs."""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.errors import TwinServeError
from harness.results.tables import FAILED, read_requests, read_summary, write_whole

# what does not decide the outcome of a run is never what was swept
_NOT_SWEPT = ("task", "results", "progress", "plots")
_LATENCY_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL", "queue_time": "Queue time"}
_STATISTICS = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}
_MAX_ROWS = 40
_MAX_PARAMETER_COLUMNS = 4


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Print what `summarize` found: whether it was simulated, latencies, throughput, memory, and what to beware of."""
    for part in (_headline(summary), _latency_table(summary), _facts_table(summary)):
        console.print(part)
        console.print()
    for warning in _warnings(summary):
        console.print(Text(f"! {warning}", style="yellow"))


def combine(folders: Sequence[Path]) -> pd.DataFrame:
    """One row per result folder, in the given order.

    Columns: run (name), folder, status (complete, interrupted, failed), error, then the configuration keys that differ
    between the runs, flattened with dots, then what their summaries hold besides. `attrs["parameters"]` lists the keys
    that differ; those that follow from the `name` or `kind` of their group are left out. A folder with a failed.json,
    or without a readable summary, is a row with status failed. Raises TwinServeError for a folder that does not exist.
    """
    documents = [_read_row(folder) for folder in folders]
    configs = [_flat(document.get("config") or {}) for document in documents]
    parameters = _swept([config for config in configs if config])
    labels = _run_names(folders)
    rows = []
    for name, folder, document, config in zip(labels, folders, documents, configs, strict=True):
        metrics = {key: value for key, value in document.items() if not isinstance(value, (dict, list))}
        swept = {key: config.get(key) for key in parameters}
        head = {
            "run": name,
            "folder": str(folder),
            "status": metrics.pop("status"),
            "error": metrics.pop("error", None),
        }
        # where both have a name, the summary says what was really used: a configuration may leave num_blocks open
        rows.append({**head, **swept, **metrics})
    table = pd.DataFrame(rows).infer_objects()
    table.attrs["parameters"] = parameters
    return table


def write_comparison(folders: Sequence[Path], out_folder: Path, console: Console | None = None) -> list[Path]:
    """Compare results: comparison.parquet, comparison.csv and the figures in `out_folder`, and a table on the console.

    Returns the paths written. A folder with unreadable tables counts as failed. Raises
    TwinServeError for one that does not exist.
    """
    # imported late, as they bring matplotlib, which a run without plots does without
    from harness.plots import write_comparison_plots
    from harness.plots.latency import latency_curves

    runs = combine(folders)
    parameters = runs.attrs["parameters"]
    if parameters:
        runs = runs.sort_values(parameters, key=_sort_key, kind="stable")
    curves = {}
    wanted = ["status", "arrival_time", "ttft", "tpot", "e2el"]
    for index, row in runs[runs["status"] != "failed"].iterrows():
        try:
            requests = read_requests(Path(row["folder"]), wanted)
        except TwinServeError as error:  # one damaged result does not stand in the way of the others
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
    return paths


def _sort_key(column: pd.Series) -> pd.Series:
    """Ranks: numbers by value, then text, then what is missing."""
    numbers = pd.to_numeric(column, errors="coerce").astype(float)
    kinds = np.where(numbers.notna(), 0, np.where(column.notna(), 1, 2)).tolist()
    keys = list(zip(kinds, numbers.fillna(0.0), column.astype(str), strict=True))
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return pd.Series([rank[key] for key in keys], index=column.index)


def _headline(summary: Mapping[str, Any]) -> Text:
    simulated = summary["simulated"]
    kind = ("SIMULATED", "bold cyan") if simulated else ("MEASURED", "bold green")
    known = [str(summary[key]) for key in ("model", "device", "trace", "arrival", "policy") if summary.get(key)]
    blocks = f"{summary['num_blocks']:,} blocks of {summary['block_size']}"
    text = Text.assemble(kind, f"  {' · '.join([*known, blocks])}")
    if not summary["complete"]:
        left = f"{summary['unfinished']:,} of {summary['num_prompts']:,} requests unfinished"
        text.append(f"\nINCOMPLETE: interrupted, {left}", style="bold red")
    return text


def _latency_table(summary: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("Latency, ms", style="bold")
    shown = [key for key in _STATISTICS if f"{key}_ttft_ms" in summary]
    for key in shown:
        table.add_column(_STATISTICS[key], justify="right", min_width=8)
    for name, label in _LATENCY_NAMES.items():
        table.add_row(label, *(_number(summary[f"{key}_{name}_ms"]) for key in shown))
    return table


def _facts_table(summary: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _facts(summary):
        table.add_row(label, text)
    return table


def _facts(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    def show(key: str) -> str:
        return _number(summary[key])

    throughput = [f"{show('output_throughput')} output tok/s", f"{show('total_token_throughput')} tok/s in all"]
    yield "Throughput", " · ".join([*throughput, f"{show('request_throughput')} requests/s"])
    if summary["goodput_share"] is not None:
        yield "Goodput", f"{_percent(summary['goodput_share'])} of requests · {show('request_goodput')} requests/s"
    failures = [f"{summary[key]:,} {key}" for key in ("rejected", "aborted", "unfinished") if summary[key]]
    counts = [f"{summary['completed']:,} of {summary['num_prompts']:,} finished in {show('duration')} s", *failures]
    yield "Requests", " · ".join(counts)
    usage = f"{_percent(summary['mean_kv_cache_usage'])} mean · {_percent(summary['max_kv_cache_usage'])} peak"
    yield "KV cache", usage
    hits = f"{_percent(summary['prefix_cache_hit_rate'])} of prompt tokens"
    yield "Cache hits", hits
    hit = f"{summary['preempted_requests']:,} requests hit · {summary['recomputed_tokens']:,} tokens recomputed"
    yield "Preemptions", f"{summary['preemptions']:,} · {hit}" if summary["preemptions"] else "none"
    batch = f"{show('mean_batch_size')} sequences and {show('mean_batch_tokens')} tokens"
    yield "Steps", f"{summary['num_steps']:,} · mean {batch}"


def _warnings(summary: Mapping[str, Any]) -> Iterable[str]:
    if summary["num_excluded"]:
        window = f"{_number(summary['window_start_s'])} to {_number(summary['window_end_s'])} s"
        yield f"{summary['num_excluded']:,} requests are left out: only arrivals from {window} count"
    if summary["truncated"]:
        yield f"{summary['truncated']:,} requests were cut short at max_model_len or the size of the KV pool"
    for reason, count in (summary.get("bad_rows") or {}).items():
        yield f"{count:,} rows of the trace were skipped: {reason}"
    if (summary.get("max_replay_lag_ms") or 0) > 0:
        yield f"arrivals were handed over late by up to {_number(summary['max_replay_lag_ms'])} ms"
    yield from summary.get("notes") or ()


def _print_comparison(runs: pd.DataFrame, parameters: Sequence[str], console: Console) -> None:
    alive = runs[runs["status"] != "failed"]
    if len(alive):
        simulated = alive["simulated"].astype(bool)
        console.print(Text(f"{simulated.sum()} runs SIMULATED, {(~simulated).sum()} MEASURED", style="bold"))
        console.print(_comparison_table(alive, parameters, mixed=simulated.nunique() > 1))
    _print_left_out(runs, console)


def _comparison_table(alive: pd.DataFrame, parameters: Sequence[str], mixed: bool) -> Table:
    """Runs in the given order, or those with the highest throughput where they are too many for a screen."""
    from harness.plots.compare import parameter_label, parameter_title, short_name, tail_percentile, value_label

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
        return _percent(value)
    return f"{value:,.0f}" if name == "preemptions" else _number(value)


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


def _read_row(folder: Path) -> dict[str, Any]:
    """The summary in the folder with a status, or the error that is there in its place."""
    if not folder.is_dir():
        raise TwinServeError(f"{folder}: no such folder")
    try:
        if (folder / FAILED).exists():
            failure = json.loads((folder / FAILED).read_text(encoding="utf-8"))
            return {"status": "failed", "error": str(failure["error"])}
        summary = read_summary(folder)
    except (OSError, ValueError, KeyError, TypeError, TwinServeError) as error:
        return {"status": "failed", "error": str(error)}
    return {**summary, "status": "complete" if summary["complete"] else "interrupted"}


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots; lists as text, so that they can be compared and sorted."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = str(value) if isinstance(value, list) else value
    return out


def _swept(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that differ between runs, without those that only follow from the kind or the name of their group."""
    keys = dict.fromkeys(key for config in configs for key in config if key.split(".")[0] not in _NOT_SWEPT)
    differing = [key for key in keys if len({config.get(key) for config in configs}) > 1]
    kept = []
    for key in differing:
        group = key.split(".")[0]
        leaders = [leader for leader in (f"{group}.kind", f"{group}.name") if leader in differing]
        leaders = leaders[: leaders.index(key)] if key in leaders else leaders
        if not any(_follows(key, leader, configs) for leader in leaders):
            kept.append(key)
    return kept


def _follows(key: str, leader: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    pairs = {(config.get(leader), config.get(key)) for config in configs}
    return len(pairs) == len({config.get(leader) for config in configs})


def _run_names(folders: Sequence[Path]) -> list[str]:
    """Paths as seen from the folder that holds all of them."""
    resolved = [folder.resolve() for folder in folders]
    common = Path(os.path.commonpath([path.parent for path in resolved])) if resolved else Path()
    return [path.relative_to(common).as_posix() for path in resolved]


def _parquet_ready(runs: pd.DataFrame) -> pd.DataFrame:
    """Parquet columns have one type: mixed ones, such as a limit that is a number or a word, become text."""
    mixed = [name for name in runs if pd.api.types.infer_dtype(runs[name], skipna=True).startswith("mixed")]
    return runs.assign(**{str(name): runs[name].map(str, na_action="ignore") for name in mixed})


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def _percent(share: float | None) -> str:
    return "–" if share is None or math.isnan(share) else f"{share:.1%}"
