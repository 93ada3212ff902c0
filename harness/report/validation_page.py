"""The page of a validation: errors of the simulation against a measured run, and their noise floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import TwinServeError
from harness.measured.names import NAMES
from harness.report.elements import Cell, Markup, bullets, facts, figures, section, table, tiles, verdict
from harness.report.figure import Axis, Figure, Limit, Series, are_far_apart
from harness.report.page import Page
from harness.report.reproduction import read_document, reproduction, settings_of
from harness.report.words import count, is_known, number_cell, numeric, records
from harness.results.files import ERRORS, SUMMARY, VALIDATION

_STATISTICS = {"median": "p50", "total": "", "request_mape": "each, MAPE", "request_p99": "each, p99"}
_MS = "0,0.[000]"


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
        parts = _of_run(document, summary)
    warnings = section("Good to know", bullets(map(str, document.get("warnings") or ())))
    return Page(
        title=f"Simulated against measured: {system}",
        badges=[("plain", "VALIDATION")],
        question=question,
        parts=[*parts, warnings, reproduction(folder, environment, config)],
    )


def _of_run(document: Mapping[str, Any], summary: Mapping[str, Any]) -> list[Markup]:
    errors = [row for row in document["errors"] if isinstance(row, dict)]
    noisy = any(is_known(row.get("noise_floor_pct")) for row in errors)
    found = [verdict("plain", "Errors at the median:", _sentence(errors))]
    if document.get("scored_on_fitted_data"):
        text = "constants of the cost model were fitted on requests that are scored here."
        found.insert(0, verdict("bad", "Scored on fitted data:", text))
    curves = document.get("curves") or {}
    return [
        *found,
        tiles(_error_tiles(errors)),
        section("Latencies, measured and simulated", figures(_curve_figures(curves))),
        section("Errors", figures([_error_figure(errors)]), _error_table(errors, noisy)),
        section("Mean state over time", _level_table(document.get("levels") or {})),
        section("Times of single steps", _step_table((document.get("steps") or {}).get("errors") or {})),
        section("What was compared", facts(_compared(document, summary))),
    ]


def _sentence(errors: Sequence[Mapping[str, Any]]) -> str:
    medians = [row for row in errors if row["statistic"] == "median" and is_known(row.get("error_pct"))]
    return ", ".join(f"{NAMES[row['metric']]} {row['error_pct']:+.1f} %{_noise(row)}" for row in medians) + "."


def _noise(row: Mapping[str, Any]) -> str:
    floor = row.get("noise_floor_pct")
    return f" (repeated measurements: ±{floor:.1f} %)" if is_known(floor) else ""


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
    return _STATISTICS.get(row["statistic"], str(row["statistic"]))


def _curve_figures(curves: Mapping[str, Any]) -> list[Figure]:
    """Cumulative distributions by latency: simulated, measured, and repeats of the measured run."""
    shares = curves.get("shares") or []
    found = []
    for name in (each for each in curves if each != "shares"):
        lines = curves[name]
        repeats = [Series(f"repeat {i}", "line", each, shares, 4, True) for i, each in enumerate(lines["repeats"], 1)]
        measured = Series("measured", "line", lines["measured"], shares, 7)
        simulated = Series("simulated", "line", lines["simulated"], shares, 1, True)
        known = [value for values in (lines["measured"], lines["simulated"]) for value in values]
        x = Axis("ms", log=are_far_apart(known, 20), format=_MS)
        y = Axis("share of requests", format="0.[0]%", start=0, end=1.02)
        found.append(Figure(NAMES[name], x, y, [*repeats, measured, simulated]))
    return found


def _error_figure(errors: Sequence[Mapping[str, Any]]) -> Figure:
    shown = [row for row in errors if is_known(row.get("error_pct"))]
    names = [f"{NAMES[row['metric']]} {_statistic(row)}".strip() for row in shown]
    places = range(len(shown))
    bars = Series("error of the simulation", "bars", [row["error_pct"] for row in shown], places, 1)
    noise = [(place, row["noise_floor_pct"]) for place, row in enumerate(shown) if is_known(row.get("noise_floor_pct"))]
    series = [bars]
    if noise:
        at, floors = [place for place, _ in noise], [floor for _, floor in noise]
        low = [-floor for floor in floors]
        series.append(Series("repeated measurements", "interval", [0.0] * len(at), at, 7, low=low, high=floors))
    zero = Limit("no error", "x", 0.0, "grey")
    x, y = Axis("error, %", format="0,0.[0]"), Axis("", names=names)
    return Figure("Error by metric", x, y, series, [zero], wide=True, height=110 + 20 * len(shown))


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
        rows = records(pd.read_csv(folder / ERRORS))
    except (OSError, ValueError) as error:
        raise TwinServeError(f"{folder / ERRORS}: {error}") from error
    of = document["errors"]
    text = ", ".join(
        f"{name.upper()} {of[name]['median_abs_pct']:.1f} % (90th percentile {of[name]['p90_abs_pct']:.1f} %)"
        for name in ("ttft", "tpot")
    )
    left_out = [f"{number} rows left out: {why}" for why, number in (document.get("left_out") or {}).items()]
    if document.get("implausible"):
        left_out.append(
            f"{len(document['implausible'])} rows imply more operations/s or bytes/s than the device reaches"
        )
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
        section("Measured and simulated", figures(_scatter(rows, name) for name in ("ttft", "tpot"))),
        section("All closed loops", table(heads, cells)),
        section("Left out or implausible", bullets(left_out)),
        section("What was compared", facts([("Measured", str(document.get("measured")))])),
    ]


def _measured_cells(row: Mapping[str, Any], name: str) -> list[Cell]:
    values = [number_cell(row.get(key)) for key in (f"{name}_ms", f"simulated_{name}_ms")]
    return [*values, _signed(row.get(f"{name}_error_pct"))]


def _scatter(rows: Sequence[Mapping[str, Any]], name: str) -> Figure:
    known = [row for row in rows if numeric(row.get(f"{name}_ms")) > 0 and numeric(row.get(f"simulated_{name}_ms")) > 0]
    measured, simulated = ([row[key] for row in known] for key in (f"{name}_ms", f"simulated_{name}_ms"))
    keys = {"prompt": "isl", "output": "osl", "GPUs": "tensor_parallel_size", "clients": "concurrency"}
    texts = {label: [f"{numeric(row.get(key)):g}" for row in known] for label, key in keys.items()}
    ends = [min(measured + simulated, default=1.0), max(measured + simulated, default=1.0)]
    x, y = (Axis(f"{kind}, ms", log=True, format=_MS) for kind in ("measured", "simulated"))
    series = [
        Series("equal", "line", ends, ends, 7, True),
        Series("closed loops", "points", measured, simulated, 0, texts=texts),
    ]
    return Figure(f"Mean {name.upper()}", x, y, series)


def _signed(value: Any) -> Cell:
    return Cell(f"{value:+.2f}" if is_known(value) else "–", numeric(value))


def _unsigned(value: Any) -> Cell:
    return Cell(f"{value:.2f}" if is_known(value) else "–", numeric(value))


def _name(config: Mapping[str, Any], group: str) -> str:
    return str((config.get(group) or {}).get("name") or f"an unknown {group}")
