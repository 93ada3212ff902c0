"""The files of a result folder: which there are, and how they are written and read.

<folder>/config.yaml        the resolved configuration
         inputs.json        digests of the files that it names, at the start
         requests.parquet   one row per request
         steps.parquet      one row per engine step
         gaps.parquet       every gap between tokens, pooled: value_s, weight
         sessions.parquet   one row per session, of a trace with sessions
         vllm_bench.json    of a run against a server: as `vllm bench serve --save-result --save-detailed` writes it
         summary.json       settings and metrics; written last, so that where it is the folder is whole
         ladder.csv         of what task=observe drove: which requests are of which load
         spans.parquet      what each sequence did when, with sinks=otel
         sent.json          where it was sent to (harness/sinks)
         failed.json        {"error": ...} instead, where a job of a sweep ended with an error
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.documents import errors_as, read_json
from harness.errors import TwinServeError
from harness.results.measures.sessions import session_table
from harness.results.metrics import json_ready
from harness.results.stored.vllm_json import VLLM_JSON, vllm_document
from harness.results.tables import Gaps, Rows, RunResult
from simulator.table import Table, table_of

if TYPE_CHECKING:
    import pandas as pd

REQUESTS, STEPS, GAPS = "requests.parquet", "steps.parquet", "gaps.parquet"
SESSIONS, SPANS = "sessions.parquet", "spans.parquet"
SUMMARY, FAILED, INPUTS, SENT = "summary.json", "failed.json", "inputs.json", "sent.json"
REPORT = "report.html"  # of a run, and of what any other task found
VALIDATION, ERRORS, CALIBRATION = "validation.json", "errors.csv", "calibration.yaml"  # of the other tasks
VALIDATED_LATENCIES, VALIDATED_LEVELS = "validation_latencies.parquet", "validation_levels.parquet"
VALIDATED_STEPS = "validation_steps.parquet"
VALIDATED = (VALIDATED_LATENCIES, VALIDATED_LEVELS, VALIDATED_STEPS)  # what the figures of a validation show
MEASURED, SIMULATED = "measured", "simulated"  # runs of a validation, in its tables; repeats follow
LADDER, SLICES = "ladder.csv", "slices.csv"  # of task=observe, and what task=validate found of each slice
CAPACITY, SEARCH = "capacity.json", "search.json"
_COLUMNS_OF_TEXT, _WHOLE = {"status", "error"}, {"request_id", "server", "lane", "step"}  # of the tables of a run
_ALWAYS = {"block_size", "complete", "num_blocks"}
_FLAGS, _COUNTS = {"complete", "simulated", "open_loop", "sampled_steps", "prompts_share"}, {"block_size", "num_blocks"}
_SIGNED = {"queue_growth"}  # all other numbers are >= 0
_LISTS = ("notes", "servers", "server_counts", "turns")
_NESTED = {
    "trace_file",
    "bad_rows",
    "notes",
    "config",
    "environment",
    "expected_lengths",
    "servers",
    "server_counts",
    "turns",
}
_TEXTS = {
    "engine", "model", "quantization", "kv_cache_dtype", "device", "trace", "trace_source", "arrival", "policy",
    "allocator", "router", "kv_pool", "cost_source", "cost_model", "vllm_command", "ended_early", "verdict",
}  # fmt: skip


def write_results(result: RunResult, summary: dict[str, Any], folder: Path, exports: Sequence[str] = ()) -> None:
    """Write the tables and the summary; each file is whole or absent, and the summary comes last.

    The summary of an earlier run is removed first, so that a mix of two runs cannot look whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (SUMMARY, FAILED):
        (folder / stale).unlink(missing_ok=True)
    for name, table in ((REQUESTS, result.request_rows), (STEPS, result.step_rows), (GAPS, _gap_table(result.gaps))):
        write_table(folder / name, table)
    (folder / SESSIONS).unlink(missing_ok=True)
    if (sessions := session_table(result.request_rows)) is not None:
        write_table(folder / SESSIONS, sessions)
    if result.itls is not None:
        document = json.dumps(json_ready(vllm_document(result, summary, result.itls)), allow_nan=False)
        write_whole(folder / VLLM_JSON, lambda path: path.write_text(document, encoding="utf-8"))
    for each in exports:
        _write_export(each, result, summary, folder)
    write_summary(summary, folder)


def write_summary(summary: dict[str, Any], folder: Path) -> None:
    """Write the summary, whole or not at all."""
    text = json.dumps(json_ready(summary), indent=2, allow_nan=False) + "\n"
    write_whole(folder / SUMMARY, lambda path: path.write_text(text, encoding="utf-8"))


def _write_export(name: str, result: RunResult, summary: dict[str, Any], folder: Path) -> None:
    from harness.results.exports import export  # imported late, as most runs do without it

    file, text = export(name, result, summary, time.time())
    write_whole(folder / file, lambda path: path.write_text(text, encoding="utf-8"))


def read_results(folder: Path) -> tuple[RunResult, dict[str, Any]]:
    """The result in a folder and its summary, which also serves as the result's `meta`.

    Raises TwinServeError where the folder or one of its files is missing or cannot be read.
    """
    summary = read_summary(folder)
    result = RunResult(
        request_rows=read_numbers(folder / REQUESTS),
        step_rows=read_numbers(folder / STEPS),
        gaps=read_gaps(folder),
        num_blocks=summary["num_blocks"],
        block_size=summary["block_size"],
        complete=summary["complete"],
        meta=summary,
    )
    return result, summary


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary in a result folder; raises TwinServeError where there is none or it cannot be read."""
    path = folder / SUMMARY
    if not folder.is_dir():
        raise TwinServeError(f"{folder}: no such folder")
    if not path.is_file():
        raise TwinServeError(f"{folder}: no {SUMMARY} in it, so not the folder of a run that ended")
    with errors_as(TwinServeError, path):
        summary = read_json(path)
    if not isinstance(summary, dict) or not summary.keys() >= _ALWAYS:
        raise TwinServeError(f"{path}: not the summary of a run, which has at least {', '.join(sorted(_ALWAYS))}")
    wrong = [key for key, value in summary.items() if not _fits(key, value)]
    if wrong:
        raise TwinServeError(f"{path}: not the summary of a run: {wrong[0]} is {str(summary[wrong[0]])[:40]!r}")
    return summary


def _fits(key: str, value: Any) -> bool:
    """Whether the summary of a run can have this value. Undefined metrics are None; all others are numbers."""
    if key in _FLAGS:
        return isinstance(value, bool)
    if key in _COUNTS:
        return (type(value) is int and value >= 1) or (value is None and key == "num_blocks")
    if key in _NESTED:
        return value is None or isinstance(value, list if key in _LISTS else dict)
    if key == "pools":
        return value is None or (isinstance(value, list) and all(map(_is_pool, value)))
    if key in _TEXTS:
        return value is None or isinstance(value, str)
    if key == "slo_met":
        return value is None or isinstance(value, bool)
    return value is None or (type(value) in (int, float) and (value >= 0 or key in _SIGNED))


def _is_pool(value: Any) -> bool:
    counts = ("num_blocks", "num_gpus", "max_num_seqs", "pipeline_parallel_size")
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and isinstance(servers := value.get("servers"), list)
        and bool(servers)
        and all(type(number) is int and number >= 0 for number in servers)
        and all(type(value.get(name)) is int and value[name] >= 1 for name in counts)
    )


def read_requests(folder: Path, columns: list[str]) -> Table:
    """Some columns of the requests table in a result folder; raises TwinServeError where it cannot be read."""
    return read_numbers(folder / REQUESTS, columns)


def read_gaps(folder: Path) -> Gaps:
    """The gaps in a result folder; raises TwinServeError where they cannot be read."""
    path = folder / GAPS
    table = read_numbers(path, ["value_s", "weight"])
    values, weights = table["value_s"].to_numpy(np.float64), table["weight"].to_numpy()
    if weights.dtype.kind != "i" or not ((weights >= 0).all() and (values >= 0).all() and weights.sum() >= 0):
        raise TwinServeError(f"{path}: value_s must be times, and weight how many gaps have each")
    return Gaps(values, weights)


def read_numbers(path: Path, columns: list[str] | None = None) -> Table:
    """A table of a run, or some columns of it, of which all but the texts hold finite numbers, or NaN for what never
    happened; raises TwinServeError where it cannot be read or holds something else."""
    from harness.results.stored.parquet import read_parquet  # imported late, as --help and errors do without pyarrow

    with _readable(path):
        table = read_parquet(path, columns)
    for name in table:
        if name in _COLUMNS_OF_TEXT or table.empty:
            continue
        values = table[name].to_numpy()
        is_whole = name in _WHOLE or (name.startswith("num_") and path.name == STEPS)
        if values.dtype.kind not in "iuf" or np.isinf(values).any() or (is_whole and np.isnan(values).any()):
            raise TwinServeError(f"{path}: no column of {'whole ' * is_whole}numbers: {name}")
    return table


def read_table(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """Any table, or some columns of it; raises TwinServeError where it cannot be read."""
    with _readable(path):
        import pandas as pd  # imported late, as a run and its page do without it

        return pd.read_parquet(path, columns=columns)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What goes wrong with a table in the block, as a TwinServeError."""
    if not path.is_file():
        raise TwinServeError(f"{path}: missing from the result folder")
    try:
        yield
    except Exception as error:  # of many types, from pyarrow and from pandas
        raise TwinServeError(f"{path}: not readable as Parquet ({_first_line(error)})") from error


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path` and rename it there: readers see all of it or the file before.

    The temporary name keeps the suffix, from which writers such as matplotlib's take the format.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _gap_table(gaps: Gaps) -> Table:
    """Equal values merged: simulated gaps repeat a lot."""
    order = np.argsort(gaps.values, kind="stable")
    values, is_first = gaps.values[order], np.ones(len(order), dtype=np.bool_)
    is_first[1:] = values[1:] != values[:-1]
    weights = np.add.reduceat(gaps.weights[order], np.flatnonzero(is_first))
    return Table({"value_s": values[is_first], "weight": weights})


def write_table(path: Path, table: Rows) -> None:
    """Write a table as Parquet, whole or not at all."""
    from harness.results.stored.parquet import write_parquet  # imported late, as --help and errors do without pyarrow

    rows = table if isinstance(table, Table) else table_of(table)
    write_whole(path, lambda temporary: write_parquet(temporary, rows))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
