"""The results of task=validate: validation.json and errors.csv in the folder, and tables on the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.results.compared_names import NAMES
from harness.results.metrics import json_ready
from harness.results.statistics.latencies import LATENCIES
from harness.results.stored.files import (
    ERRORS,
    MEASURED,
    SIMULATED,
    SLICES,
    VALIDATED_LATENCIES,
    VALIDATED_LEVELS,
    VALIDATED_STEPS,
    VALIDATION,
    write_table,
    write_whole,
)
from harness.results.terminal import print_line
from harness.validation.error_statistics import PARTS
from harness.validation.side_by_side import Validation
from harness.validation.slices import drift

_STATISTICS = {"median": "p50", "total": "", "request_mape": "each, MAPE", "request_p99": "each, p99"}
_SHARES = ("prefix_cache_hit_rate", "kv_cache_usage")


def write_validation(validation: Validation, folder: Path) -> dict[str, Any]:
    """Write validation.json, errors.csv and the tables behind the figures; returns the content of validation.json."""
    run, settings, fitted = validation.run, validation.config.validation, validation.fitted
    errors = json_ready(validation.errors.to_dict("records"))
    document = json_ready(
        {
            "measured": {
                "kind": run.kind,
                "source": run.source,
                "engine": run.engine,
                "data_sha256": run.data_sha256(),
                "num_requests": len(run.requests),
                "settings": dict(run.settings),
            },
            "score": settings.score,
            "num_scored": len(validation.measured),
            "latency_from": settings.latency_from,
            "repeats": settings.repeats,
            "calibration": None if fitted is None else {"path": fitted.path, **fitted.fitted_on},
            "scored_on_fitted_data": validation.on_fitted_data,
            "errors": errors,
            "levels": validation.levels,
            "slices": None if validation.slices is None else drift(validation.slices),
            "steps": validation.steps[0].summary() if validation.steps else None,
            "steps_of_repeats": [replay.summary() for replay in validation.steps[1:]],
            "warnings": validation.warnings,
            "subtitle": validation.subtitle(),
            "shown_in_grey": _shown_in_grey(validation),
        }
    )
    _write_tables(validation, folder)
    if (slices := validation.slices) is not None:
        write_whole(folder / SLICES, lambda path: slices.to_csv(path, index=False))
    write_errors(validation.errors, document, folder)
    return dict(document)


def write_errors(errors: pd.DataFrame, document: Mapping[str, Any], folder: Path) -> None:
    """Write errors.csv, and `document` as validation.json."""
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    write_whole(folder / ERRORS, lambda path: errors.to_csv(path, index=False))
    write_whole(folder / VALIDATION, lambda path: path.write_text(text, encoding="utf-8"))


def _write_tables(validation: Validation, folder: Path) -> None:
    runs = [MEASURED, SIMULATED, *(f"repeat {i}" for i in range(1, 1 + len(validation.repeats)))]
    tables = [validation.measured, validation.simulated, *validation.repeats]
    latencies = [table[list(LATENCIES)].assign(run=run) for run, table in zip(runs, tables, strict=True)]
    write_table(folder / VALIDATED_LATENCIES, pd.concat(latencies))
    shown = ["time", *validation.levels]
    levels = {MEASURED: validation.measured_levels, SIMULATED: validation.simulated_levels}
    write_table(folder / VALIDATED_LEVELS, pd.concat([table[shown].assign(run=run) for run, table in levels.items()]))
    if validation.steps:
        write_table(folder / VALIDATED_STEPS, validation.steps[0].steps[["kind", "measured", "predicted"]])


def _shown_in_grey(validation: Validation) -> str:
    """What the grey curves of the figure of latencies are; empty without any."""
    count = len(validation.repeats)
    return f"grey: {count} repeat{'s' if count > 1 else ''}, errors from the median of all" if count else ""


def print_validation(validation: Validation, console: Console) -> None:
    """Print the errors, the levels over time, the errors of single steps, and the warnings."""
    console.print(_headline(validation), soft_wrap=not console.is_terminal)
    for table in (error_table(validation.errors), _level_table(validation.levels)):
        console.print(table)
        console.print()
    if validation.steps:
        summary, *others = (replay.summary() for replay in validation.steps)
        console.print(_step_table(summary))
        print_line(console, _replayed(summary), "dim")
        for number, other in enumerate(others, 1):
            print_line(console, f"repeat {number} {_replayed(other)}", "dim")
        console.print()
    if validation.slices is not None:
        print_line(console, drift(validation.slices)["text"])
    if validation.on_fitted_data:
        assert validation.fitted is not None
        text = f"! SCORED ON FITTED DATA: {validation.fitted.path} was fitted on requests that are scored here"
        print_line(console, text, "bold red")
    for warning in validation.warnings:
        print_line(console, f"! {warning}", "yellow")


def _headline(validation: Validation) -> Text:
    run, settings = validation.run, validation.config.validation
    scored = f"{len(validation.measured):,} of {len(run.requests):,} requests"
    part = "" if settings.score == "all" else f" ({PARTS[settings.score]})"
    text = Text.assemble(("MEASURED", "bold green"), f"  {run.engine} · {run.source}\n")
    text.append("SIMULATED", "bold cyan")
    config = validation.config
    text.append(f" {config.model.name} on {config.device.name} · cost {validation.cost}")
    runs = f" · measured: median of {1 + len(settings.repeats)} runs" if settings.repeats else ""
    text.append(f"\n{scored}{part} · latencies from {settings.latency_from} time{runs}\n")
    return text


def error_table(errors: pd.DataFrame) -> Table:
    """For the terminal."""
    repeated = errors["noise_floor_pct"].notna().any()
    table = _plain_table("", "", "measured", "simulated", "error %", *(["noise %"] if repeated else []))
    last = None
    for row in errors.to_dict("records"):
        metric, statistic = row["metric"], row["statistic"]
        if last in LATENCIES and metric != last:
            table.add_row()
        name = "" if metric == last else _label(metric, row["unit"])
        last = metric
        statistic = _STATISTICS.get(statistic, statistic)
        cells = [_value(metric, row["measured"]), _value(metric, row["simulated"]), _error(row["error_pct"])]
        table.add_row(name, statistic, *cells, *([_unsigned(row["noise_floor_pct"])] if repeated else []))
    return table


def _level_table(levels: Mapping[str, Mapping[str, float]]) -> Table:
    table = _plain_table("Mean over time", "measured", "simulated", "mean |difference|")
    for name, level in levels.items():
        table.add_row(NAMES[name], *(_value(name, value) for value in level.values()))
    return table


def _step_table(summary: Mapping[str, Any]) -> Table:
    table = _plain_table("Step times alone", "steps", "MAPE %", "bias %", "total %")
    for kind, found in summary["errors"].items():
        table.add_row(
            kind, f"{found['count']:,}", _unsigned(found["mape_pct"]),
            _error(found["bias_pct"]), _error(found["total_error_pct"]),
        )  # fmt: skip
    return table


def _replayed(summary: Mapping[str, Any]) -> str:
    first = summary["first_difference"]
    same = "all as measured" if first is None else f"as measured up to step {first:,} of {summary['num_steps']:,}"
    return (
        f"replayed with measured step times: plans {same}; preemptions {_same(summary['preemptions_identical'])}, "
        f"cache hits {_same(summary['cache_hits_identical'])}"
    )


def _plain_table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in heads:
        number = head not in ("", "Mean over time", "Step times alone")
        table.add_column(head, justify="right" if number else "left", no_wrap=True, min_width=8 if number else None)
    return table


def _label(metric: str, unit: str) -> str:
    return f"{NAMES[metric]}, {unit}" if unit and metric not in _SHARES else NAMES[metric]


def _value(metric: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    if metric in _SHARES:
        return f"{value:.2%}"
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def _error(percent: float) -> str:
    return "–" if math.isnan(percent) else f"{percent:+.2f}"


def _unsigned(percent: float) -> str:
    return "–" if math.isnan(percent) else f"{percent:.2f}"


def _same(identical: bool) -> str:
    return "equal" if identical else "NOT equal"
