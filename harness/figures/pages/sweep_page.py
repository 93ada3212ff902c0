"""The page of a sweep, or of any set of earlier results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.config.schema.tasks.plotting import AS_USUAL
from harness.errors import TwinServeError
from harness.figures.chart import is_known
from harness.figures.charts.compare import metrics_page_chart
from harness.figures.charts.tradeoff import frontier_chart
from harness.figures.drawn_metrics import by_throughput, tail_of, throughput
from harness.figures.labels import parameter_title, short_name, value_label
from harness.figures.pages.elements import Cell, Markup, bullets, facts, figures, paragraph, section, table, verdict
from harness.figures.pages.page import Page
from harness.figures.pages.reproduction import reproduction
from harness.figures.pages.words import count, limits_of, number_cell, numeric, records, slo_text
from harness.results.load import ALIKE
from harness.results.measures.slo import LIMITED
from harness.results.measures.step_times import mixed_text
from harness.results.measures.unserved import unserved_text
from harness.results.stored.files import read_summary
from harness.results.summary import number, percent

_VERDICTS = {"stable": "good", "overloaded": "bad", "unclear": "warn"}
_MOST_FAILED = 20
_LOAD_UNITS = {"arrival.rate": "requests/s", "arrival.concurrency": "clients"}


def sweep_page(runs: pd.DataFrame, configurations: pd.DataFrame, folder: Path) -> Page:
    """The page of a comparison that is written to `folder`.

    runs: one row per run, failed ones included, with the columns run, folder, status, error; attrs has their `notes`.
    configurations: one row per configuration and load, with a `label` and the columns of a summary; attrs has
    `parameters`, `load` and `fixed`.
    """
    parameters, load = configurations.attrs["parameters"], configurations.attrs.get("load")
    rows = records(configurations)
    limits = _common_limits(rows)
    environment, config = _first_settings(runs)
    drawn, frontier = metrics_page_chart(configurations), frontier_chart(configurations, AS_USUAL)
    kinds = {bool(row["simulated"]) for row in rows if "simulated" in row}
    badges = [("plain", "MEASURED AND SIMULATED" if len(kinds) > 1 else "SIMULATED" if True in kinds else "MEASURED")]
    return Page(
        title=_title(configurations, rows),
        badges=badges if kinds else [],  # type: ignore[arg-type]
        question=_question(rows, parameters, load, limits),
        parts=[
            *_verdicts(runs, rows, parameters, load, limits),
            paragraph(f"Configurations are named by {parameter_title(parameters)}.") if parameters else Markup(""),
            section("What all have in common", facts(_context(configurations))),
            section("Figures", paragraph(drawn.subtitle, "grey") if drawn else Markup(""), figures(drawn, frontier)),
            section("All configurations", _table(rows, parameters, load, configurations.attrs.get("baseline"))),
            section("Failed", bullets(_failures(runs))),
            section("Good to know", bullets(runs.attrs.get("notes", []))),
            reproduction(
                folder, environment, config, "All settings of the first run", configurations.attrs.get("fixed")
            ),
        ],
    )


def _title(configurations: pd.DataFrame, rows: Sequence[Mapping[str, Any]]) -> str:
    found = count(configurations["label"].nunique() if len(configurations) else 0, "configuration")
    names = [configurations[key].dropna().unique() for key in ("model", "device") if key in configurations]
    on = " on ".join(str(values[0]) for values in names if len(values) == 1)
    return f"{found} compared: {on}" if on else f"{found} compared"


def _question(
    rows: Sequence[Mapping[str, Any]], parameters: Sequence[str], load: str | None, limits: Mapping[str, float]
) -> str:
    over = f" over {short_name(load, [load]).replace('_', ' ')}" if load else ""
    names = [short_name(name, parameters) for name in parameters]
    asked = f"What does the choice of {' and '.join(names)} change{over}" if names else f"How do the runs compare{over}"
    tail = tail_of(rows[0]) if rows else "p99"
    return f"{asked}? Which of them keep {slo_text(limits, tail)}?" if limits else f"{asked}?"


def _verdicts(
    runs: pd.DataFrame,
    rows: Sequence[Mapping[str, Any]],
    parameters: Sequence[str],
    load: str | None,
    limits: Mapping[str, float],
) -> list[Markup]:
    found = []
    if mixed := mixed_text(row.get("cost_source") for row in rows):
        found.append(verdict("warn", "Step times of two kinds:", f"{mixed}."))
    failed = int((runs["status"] == "failed").sum())
    if failed:
        found.append(verdict("bad", f"{count(failed, 'run')} failed", "and are not compared; the reasons stand below."))
    interrupted = int((runs["status"] == "interrupted").sum())
    if interrupted:
        found.append(
            verdict("warn", f"{count(interrupted, 'run')} ended early", "and are compared as far as they came.")
        )
    overloaded = [row for row in rows if row.get("verdict") == "overloaded"]
    if overloaded:
        text = f"of {len(rows)}: the longer such a run, the longer its latencies."
        found.append(verdict("warn", f"{len(overloaded)} overloaded", text))
    if unserved := [row for row in rows if unserved_text(row)]:
        text = f"of {len(rows)}: requests were rejected or cut short, as {unserved_text(unserved[0])}."
        found.append(verdict("bad", f"{len(unserved)} not all served", text))
    if limits and any(row.get("slo_met") is not None for row in rows):
        found.append(_slo_verdict(rows, parameters, load))
    elif rows:
        fit = [row for row in rows if row.get("verdict") != "overloaded" and not unserved_text(row)] or rows
        alike = by_throughput(fit)[0]
        best = alike[0]
        at = f" at {value_label(best[load])} {_load_unit(load)}" if load else ""
        text = f"{_named(best, parameters)}{at}, {_throughput_of(alike)}"
        found.append(verdict("plain", "Highest throughput without overload:", text))
    return found


def _slo_verdict(rows: Sequence[Mapping[str, Any]], parameters: Sequence[str], load: str | None) -> Markup:
    met = [row for row in rows if row.get("slo_met") is True]
    if not met:
        return verdict("bad", "The SLO", "is kept by none.")
    if load is None:
        alike = by_throughput(met)[0]
        text = f"{_named(alike[0], parameters)}, {_throughput_of(alike)}"
        return verdict(
            "good", f"{len(met)} of {len(rows)} keep the SLO;", f"the highest throughput among them has {text}."
        )
    highest = max(numeric(row[load]) for row in met)
    best = by_throughput([row for row in met if numeric(row[load]) == highest])[0][0]
    others = [str(row["label"]) for row in met if numeric(row[load]) == highest and row["label"] != best["label"]]
    also = f" (also {', '.join(others[:4])})" if others else ""
    text = f"{number(highest)} {_load_unit(load)} with {_named(best, parameters)}{also}"
    return verdict("good", "The SLO is kept up to", f"{text}; of the loads that were tried.")


def _named(row: Mapping[str, Any], parameters: Sequence[str]) -> str:
    """The label of a configuration; after the name of its parameter where there is just one, as in `block_size 16`."""
    return f"{parameter_title(parameters)} {row['label']}" if len(parameters) == 1 else str(row["label"])


def _throughput_of(alike: Sequence[Mapping[str, Any]]) -> str:
    """The throughput of the first row, and that its TTFT is the lowest of the rows with about this throughput."""
    best, tail = alike[0], tail_of(alike[0])
    text, latency = f"{number(throughput(best))} output tok/s", best.get(f"{tail}_ttft_ms")
    if len(alike) == 1 or not is_known(latency):
        return text
    return f"{text}; of {len(alike)} alike within {ALIKE:.0%} it has the lowest {tail} TTFT, {number(latency)} ms"


def _context(configurations: pd.DataFrame) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in (configurations.attrs.get("fixed") or {}).items()]


def _table(
    rows: Sequence[Mapping[str, Any]], parameters: Sequence[str], load: str | None, baseline: str | None
) -> Markup:
    tail = tail_of(rows[0]) if rows else "p99"
    metrics = {
        "output_throughput": "output tok/s",
        "output_throughput_per_gpu": "per GPU",
        "median_ttft_ms": "TTFT p50",
        f"{tail}_ttft_ms": f"TTFT {tail}",
        "median_tpot_ms": "TPOT p50",
        f"{tail}_tpot_ms": f"TPOT {tail}",
        "request_goodput": "goodput req/s",
        "preemptions": "preempted",
    }
    metrics = {key: name for key, name in metrics.items() if any(is_known(row.get(key)) and row[key] for row in rows)}
    if all((row.get("num_gpus") or 1) == 1 for row in rows):
        metrics.pop("output_throughput_per_gpu", None)
    keys = [*parameters, *([load] if load else [])] or ["run"]
    against = {key for key in metrics if any(is_known(row.get(f"{key}_vs_baseline_pct")) for row in rows)}
    columns: list[tuple[str, list[Cell]]] = [
        (short_name(key, keys), [_setting(row.get(key)) for row in rows]) for key in keys
    ]
    if any((row.get("num_runs") or 1) > 1 for row in rows):
        columns.append(("runs", [number_cell(row.get("num_runs")) for row in rows]))
    for key, name in metrics.items():
        columns.append((name, [number_cell(row.get(key)) for row in rows]))
        if key in against:
            columns.append(("±%", [_difference(row.get(f"{key}_vs_baseline_pct")) for row in rows]))
    for name in LIMITED:
        if any(is_known(row.get(f"slo_{name}_attainment")) for row in rows):
            cells_of = [_share(row.get(f"slo_{name}_attainment")) for row in rows]
            columns.append((f"{name.upper()} in SLO", cells_of))
    for key, name in (("mean_kv_cache_usage", "KV use"), ("prefix_cache_hit_rate", "cache hits")):
        if any(is_known(row.get(key)) and row[key] for row in rows):
            columns.append((name, [_share(row.get(key)) for row in rows]))
    if any(row.get("verdict") for row in rows):
        columns.append(("verdict", [_verdict_cell(row.get("verdict")) for row in rows]))
    if any(map(unserved_text, rows)):
        columns.append(("not served", [Cell(unserved_text(row) or "–", tone="bad") for row in rows]))
    if any(row.get("slo_met") is not None for row in rows):
        columns.append(("SLO", [_slo_cell(row.get("slo_met")) for row in rows]))
    cells = [list(row) for row in zip(*(column for _, column in columns), strict=True)]
    caption = f"Latencies in ms. ±%: difference from {baseline}." if against and baseline else "Latencies in ms."
    return table([name for name, _ in columns], cells, caption)


def _setting(value: Any) -> Cell:
    return Cell(value_label(value), numeric(value) if is_known(value) else None)


def _share(value: Any) -> Cell:
    return Cell(percent(numeric(value)), numeric(value))


def _difference(value: Any) -> Cell:
    return Cell(f"{value:+.1f}" if is_known(value) else "–", numeric(value))


def _verdict_cell(value: Any) -> Cell:
    return Cell(str(value or "–"), tone=_VERDICTS.get(str(value), "plain"))  # type: ignore[arg-type]


def _slo_cell(value: Any) -> Cell:
    if value is None or value != value:
        return Cell("–")
    return Cell("met", tone="good") if value else Cell("missed", tone="bad")


def _common_limits(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The limits that all rows share."""
    found = [limits_of(row, {}) for row in rows]
    return {
        name: limit
        for name, limit in (found[0] if found else {}).items()
        if all(each.get(name) == limit for each in found)
    }


def _failures(runs: pd.DataFrame) -> list[str]:
    failed = runs[runs["status"] == "failed"]
    texts = [f"{row['run']}: {row['error']}" for row in records(failed.head(_MOST_FAILED))]
    return texts + ([f"and {len(failed) - _MOST_FAILED} more"] if len(failed) > _MOST_FAILED else [])


def _first_settings(runs: pd.DataFrame) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Environment and configuration of the first run that can be read."""
    for folder in runs.loc[runs["status"] != "failed", "folder"]:
        try:
            summary = read_summary(Path(folder))
        except TwinServeError:
            continue
        return summary.get("environment") or {}, summary.get("config") or {}
    return {}, {}


def _load_unit(load: str) -> str:
    """What a value of the load counts; the name of its key where that is not known."""
    return _LOAD_UNITS.get(load, short_name(load, [load]).replace("_", " "))
