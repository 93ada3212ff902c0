"""The page of a validation: errors of the simulation against a measured run, and their noise floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from engine.documents import DocumentError, read_yaml
from harness.config.schema.tasks.plotting import AS_USUAL
from harness.errors import TwinServeError
from harness.figures.chart import Chart, is_known
from harness.figures.charts.closed_loops import rows_chart
from harness.figures.charts.validation import STATISTICS, errors_chart, validation_charts
from harness.figures.pages.elements import Cell, Markup, bullets, facts, figures, section, table, tiles, verdict
from harness.figures.pages.page import Page
from harness.figures.pages.reproduction import read_document, reproduction, settings_of
from harness.figures.pages.words import count, number_cell, numeric, records
from harness.results.compared_names import NAMES
from harness.results.stored.files import CALIBRATION, ERRORS, SUMMARY, VALIDATED_LATENCIES, VALIDATION


def validation_page(folder: Path) -> Page:
    """The page of the validation in `folder`, of a run or of public closed loops.

    Raises:
        TwinServeError: its files cannot be read.
    """
    document = read_document(folder / VALIDATION)
    config = settings_of(folder) or document.get("config") or {}
    summary = read_document(folder / SUMMARY) if (folder / SUMMARY).exists() else {}
    environment = summary.get("environment") or {}
    system = f"{_name(config, 'model')} on {_name(config, 'device')}"
    if isinstance(document.get("errors"), dict):
        question, parts = (
            f"How far are simulated closed loops of {system} from public measurements?",
            _of_rows(document, folder),
        )
    else:
        measured = document.get("measured") or {}
        question = f"How far is a simulation of {system} from what {measured.get('engine') or 'an engine'} measured?"
        parts = _of_run(document, summary, folder)
    warnings = section("Good to know", bullets(map(str, document.get("warnings") or ())))
    return Page(
        title=f"Simulated against measured: {system}",
        badges=[("plain", "VALIDATION")],
        question=question,
        parts=[*parts, warnings, reproduction(folder, environment, config)],
    )


def _of_run(document: Mapping[str, Any], summary: Mapping[str, Any], folder: Path) -> list[Markup]:
    errors = [row for row in document["errors"] if isinstance(row, dict)]
    noisy = any(is_known(row.get("noise_floor_pct")) for row in errors)
    found = [verdict("plain", "Errors at the median:", _sentence(errors))]
    if document.get("scored_on_fitted_data"):
        text = "constants of the cost model were fitted on requests that are scored here."
        found.insert(0, verdict("bad", "Scored on fitted data:", text))
    latencies, levels, steps = _charts(document, errors, folder)
    known = [row for row in errors if is_known(row.get("error_pct"))]
    return [
        *found,
        tiles(_error_tiles(errors)),
        _observed(folder, errors, summary, document.get("slices")),
        section("Latencies, measured and simulated", figures(latencies)),
        section("Errors", figures(errors_chart(known)), _error_table(errors, noisy)),
        section("State over time", figures(levels), _level_table(document.get("levels") or {})),
        section(
            "Times of single steps", figures(steps), _step_table((document.get("steps") or {}).get("errors") or {})
        ),
        section("What was compared", facts(_compared(document, summary))),
    ]


def _observed(
    folder: Path, errors: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], slices: Mapping[str, Any] | None
) -> Markup:
    """After task=observe: the errors of the fitted loads beside those of the held-out one, how much the server itself
    varied, and what a simulation takes."""
    if not (folder / CALIBRATION).exists():
        return Markup("")
    try:
        document = read_yaml(folder / CALIBRATION, numbers="any")
        fit = document["objective"]
        fits = [{name: 100 * error for name, error in fit[key].items()} for key in ("errors_before", "errors_after")]
        constants = ", ".join(f"{name} {value:.4g}" for name, value in document["constants"].items())
    except (DocumentError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise TwinServeError(f"{folder / CALIBRATION}: {error}") from error
    second = {f"{row['metric']} {row['statistic']}": row.get("error_pct") for row in errors}
    rows = [
        [Cell(f"{NAMES[name.split()[0]]} {_statistic({'statistic': name.split()[1]})}"),
         *(_signed(each.get(name)) for each in (*fits, second))]
        for name in fits[1] if name.split()[0] in NAMES
    ]  # fmt: skip
    blocks = f" num_blocks={summary['num_blocks']}" if summary.get("num_blocks") else ""
    return section(
        "The server, observed",
        table(["error %", "fitted loads, before the fit", "fitted loads", "held-out load"], rows),
        facts(
            [
                ("Fitted constants", constants),
                *([("The server itself", slices["text"])] if slices else []),
                ("Use it with", f"cost.calibration={folder / CALIBRATION}{blocks}"),
            ]
        ),
    )


def _charts(
    document: Mapping[str, Any], errors: Sequence[Mapping[str, Any]], folder: Path
) -> tuple[Chart | None, Chart | None, Chart | None]:
    """Latencies, levels and steps; None for validations of earlier versions, which did not keep what they show."""
    if "subtitle" not in document or not (folder / VALIDATED_LATENCIES).is_file():
        return None, None, None
    table = pd.DataFrame(errors, columns=["metric", "statistic", "error_pct"]).astype({"error_pct": float})
    latencies, levels, steps = validation_charts(document, folder, table, AS_USUAL).values()
    return latencies, levels, steps


def _sentence(errors: Sequence[Mapping[str, Any]]) -> str:
    medians = [row for row in errors if row["statistic"] == "median" and is_known(row.get("error_pct"))]
    return ", ".join(f"{NAMES[row['metric']]} {row['error_pct']:+.1f} %{_noise(row)}" for row in medians) + "."


def _noise(row: Mapping[str, Any]) -> str:
    floor = row.get("noise_floor_pct")
    return f" (noise: ±{floor:.1f} %)" if is_known(floor) else ""


def _error_tiles(errors: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    wanted = {("ttft", "median"), ("ttft", "p99"), ("tpot", "median"), ("tpot", "p99"), ("output_throughput", "mean")}
    return [
        (f"{NAMES[row['metric']]} {_statistic(row)}", f"{row['error_pct']:+.1f} %", _values(row))
        for row in errors
        if (row["metric"], row["statistic"]) in wanted and is_known(row.get("error_pct"))
    ]


def _values(row: Mapping[str, Any]) -> str:
    measured, simulated = (number_cell(row.get(name)).text for name in ("measured", "simulated"))
    return f"{simulated} simulated, {measured} measured {row.get('unit') or ''}".strip()


def _statistic(row: Mapping[str, Any]) -> str:
    return STATISTICS.get(row["statistic"], str(row["statistic"]))


def _error_table(errors: Sequence[Mapping[str, Any]], noisy: bool) -> Markup:
    heads = ["metric", "statistic", "unit", "measured", "simulated", "error %", *(["noise %"] if noisy else [])]
    rows = [
        [
            Cell(NAMES[row["metric"]]),
            Cell(_statistic(row)),
            Cell(str(row.get("unit") or "")),
            number_cell(row.get("measured")),
            number_cell(row.get("simulated")),
            _signed(row.get("error_pct")),
            *([_unsigned(row.get("noise_floor_pct"))] if noisy else []),
        ]
        for row in errors
    ]
    return table(heads, rows)


def _level_table(levels: Mapping[str, Mapping[str, Any]]) -> Markup:
    keys = ("mean_measured", "mean_simulated", "mean_abs_difference")
    rows = [
        [Cell(NAMES.get(name, name)), *(number_cell(level.get(key)) for key in keys)] for name, level in levels.items()
    ]
    return table(["", "measured", "simulated", "mean |difference|"], rows)


def _step_table(errors: Mapping[str, Mapping[str, Any]]) -> Markup:
    rows = [
        [Cell(kind), number_cell(found.get("count")), _unsigned(found.get("mape_pct")), _signed(found.get("bias_pct"))]
        for kind, found in errors.items()
    ]
    return table(["kind", "steps", "MAPE %", "bias %"], rows)


def _compared(document: Mapping[str, Any], summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    measured = document.get("measured") or {}
    scored = f"{document.get('num_scored')} of {count(measured.get('num_requests') or 0, 'request')}"
    shown = {
        "Measured": f"{measured.get('engine')} · {measured.get('source')}",
        "SHA-256 of the measured data": measured.get("data_sha256"),
        "Scored": f"{scored} ({str(document.get('score')).replace('_', ' ')})",
        "Latencies from": document.get("latency_from"),
        "Cost model": summary.get("cost_model") or summary.get("cost_source"),
        "Calibration": (document.get("calibration") or {}).get("path"),
        "Repeats": ", ".join(map(str, document.get("repeats") or ())),
    }
    return [(name, str(text)) for name, text in shown.items() if text]


def _of_rows(document: Mapping[str, Any], folder: Path) -> list[Markup]:
    """Of many closed loops, each a row of errors.csv."""
    try:
        errors = pd.read_csv(folder / ERRORS)
    except (OSError, ValueError) as error:
        raise TwinServeError(f"{folder / ERRORS}: {error}") from error
    rows, of = records(errors), document["errors"]
    text = ", ".join(
        f"{name.upper()} {of[name]['median_abs_pct']:.1f} % (90th percentile {of[name]['p90_abs_pct']:.1f} %)"
        for name in ("ttft", "tpot")
    )
    left_out = [f"{number} rows left out: {why}" for why, number in (document.get("left_out") or {}).items()]
    excluded = (document.get("excluded") or {}).items()
    left_out += [f"{len(ids)} rows cannot be right, and are not in these errors: {reason}" for reason, ids in excluded]
    heads = [
        "prompt",
        "output",
        "GPUs",
        "clients",
        "TTFT ms",
        "simulated",
        "error %",
        "TPOT ms",
        "simulated",
        "error %",
    ]
    keys = ("isl", "osl", "tensor_parallel_size", "concurrency")
    cells = [
        [*(number_cell(row.get(key)) for key in keys), *_measured_cells(row, "ttft"), *_measured_cells(row, "tpot")]
        for row in rows
    ]
    return [
        verdict("plain", f"Median absolute error over {count(len(rows), 'closed loop')}:", f"{text}."),
        section("Measured and simulated", figures(rows_chart(errors, ""))),
        section("All closed loops", table(heads, cells)),
        section("Left out", bullets(left_out)),
        section("What was compared", facts([("Measured", str(document.get("measured")))])),
    ]


def _measured_cells(row: Mapping[str, Any], name: str) -> list[Cell]:
    values = [number_cell(row.get(key)) for key in (f"{name}_ms", f"simulated_{name}_ms")]
    return [*values, _signed(row.get(f"{name}_error_pct"))]


def _signed(value: Any) -> Cell:
    return Cell(f"{value:+.2f}" if is_known(value) else "–", numeric(value))


def _unsigned(value: Any) -> Cell:
    return Cell(f"{value:.2f}" if is_known(value) else "–", numeric(value))


def _name(config: Mapping[str, Any], group: str) -> str:
    return str((config.get(group) or {}).get("name") or f"an unknown {group}")
