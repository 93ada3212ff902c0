"""Results whose pages are tested, with names that are markup and formulas where they are not escaped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.config import MetricsConfig, SloConfig
from harness.figures.pages import write_comparison_page, write_page
from harness.results.metrics import summarize
from harness.results.statistics.latencies import LATENCIES
from harness.results.stored.files import (
    MEASURED,
    SIMULATED,
    VALIDATED_LATENCIES,
    VALIDATED_LEVELS,
    VALIDATED_STEPS,
    write_results,
    write_table,
)  # fmt: skip
from harness.studies.comparison.combine import combine
from harness.studies.comparison.repeats import configurations, with_differences
from tests.harness.results.builders import META, heavy_tailed_requests, run_toy_engine

HOSTILE = "</script><img src=http://host/x onerror=alert(1)> & $$x^2$$ \\(y\\)"


class Parsed(HTMLParser):
    """Tags with their attributes, texts outside scripts and styles, data of figures, and rows of sortable tables."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.figures: list[dict[str, Any]] = []
        self.tables: list[list[list[dict[str, str | None]]]] = []
        self._inside = ""
        self._is_data = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append({"tag": tag, **values})
        if tag in ("script", "style"):
            self._inside, self._is_data = tag, values.get("type") == "application/json"

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script" and self._is_data:
            self.figures.append(json.loads(data, parse_constant=pytest.fail))
        elif self._inside == "script":
            self.scripts.append(data)
        elif not self._inside:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def write_run(folder: Path, rate: float = 30.0, count: int = 300, **meta: Any) -> dict[str, Any]:
    """The result of a toy run in `folder`; returns its summary."""
    result = run_toy_engine(heavy_tailed_requests(count, rate, hit_share=0.3), num_blocks=500)
    result = replace(result, meta={**META, "trace": HOSTILE, "notes": [HOSTILE], **meta})
    config = MetricsConfig(slo=SloConfig(ttft_ms=500, tpot_ms=40))
    summary = summarize(result, config)
    write_results(result, summary, folder)
    return summary


def run_page(folder: Path) -> Path:
    write_run(folder)
    hydra = folder / ".hydra"
    hydra.mkdir()
    (hydra / "overrides.yaml").write_text(f"- arrival.rate=30\n- 'trace.path={HOSTILE}'\n")
    return written(write_page(folder))


def sweep_page(folder: Path) -> Path:
    """Two schedulers at three rates; one job failed."""
    for name in ("fcfs", HOSTILE):
        for rate in (10.0, 30.0, 90.0):
            config = {**META["config"], "scheduler": {"policy": name}, "arrival": {"kind": "poisson", "rate": rate}}
            write_run(folder / f"{len(name)}-{rate}", rate, 120, config=config)
    failed = folder / "failed"
    failed.mkdir()
    (failed / "failed.json").write_text(json.dumps({"error": f"no such trace {HOSTILE}", "traceback": ""}))
    runs = combine(sorted(path for path in folder.iterdir() if path.is_dir()))
    table = with_differences(configurations(runs), None, ["output_throughput", "p99_ttft_ms"])
    return write_comparison_page(runs, table, folder)


def capacity_document() -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for number in (1, 2, 3):
        probes = [
            {
                "value": value,
                "folder": "p",
                "holds": value < 10 * number,
                "verdict": "stable",
                "ttft_ms": 50.0 * value,
            }
            for value in (5.0 * number, 12.0 * number)
        ]
        row = {
            "label": f"{HOSTILE} {number}",
            "overrides": {"scheduler": f"{HOSTILE} {number}", "max_num_seqs": str(number)},
            "capacity": 9.5 * number,
            "low": 9.0 * number,
        }
        row |= {"high": 10.0 * number, "per_gpu": 9.5 * number, "num_gpus": 1, "cost_per_million_tokens": None}
        row |= {"interactivity": 40.0, "output_throughput": 3000.0 * number, "num_probes": 2, "probes": probes}
        rows.append(row)
    rows.append({"label": "none", "capacity": None, "low": 0.0, "high": 1.0, "per_gpu": None, "probes": []})
    return {
        "question": f"At which rate does the SLO hold with {HOSTILE}?",
        "over": "arrival.rate",
        "unit": "requests/s",
        "slo": {"ttft": 500, "percentile": 99},
        "rows": rows,
        "best": 2,
        "sentence": f"{HOSTILE} carries most.",
        "command": f"vllm serve '{HOSTILE}'",
    }


def capacity_page(folder: Path) -> Path:
    folder.mkdir()
    (folder / "capacity.json").write_text(json.dumps(capacity_document()))
    return written(write_page(folder))


def search_document() -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {
            "label": f"scheduler={HOSTILE} max_num_seqs={seats}",
            "overrides": {"scheduler": HOSTILE, "max_num_seqs": str(seats)},
            "value": None if seats == 32 else seats / 10,
            "given_up": f"fails at once {HOSTILE}" if seats == 32 else None,
            "folder": f"trials/{seats}",
        }
        for seats in (64, 32, 128, 16)
    ]
    return {
        "question": f"maximize request_goodput over {HOSTILE}",
        "objective": "request_goodput",
        "direction": "maximize",
        "rows": rows,
        "best": 2,
        "sentence": f"Best of 4 trials: {HOSTILE}",
        "command": f"vllm serve '{HOSTILE}'",
    }


def search_page(folder: Path) -> Path:
    folder.mkdir()
    (folder / "search.json").write_text(json.dumps(search_document()))
    return written(write_page(folder))


def validation_document() -> dict[str, Any]:
    errors: list[dict[str, Any]] = [
        {"metric": metric, "statistic": statistic, "unit": "ms", "measured": 100.0, "simulated": 100.0 + error,
         "error_pct": error, "noise_floor_pct": 3.0}
        for metric in ("ttft", "tpot") for statistic, error in (("mean", -4.0), ("median", 2.5), ("p99", 20.0))
    ]  # fmt: skip
    errors.append({**errors[0], "statistic": "request_mape", "measured": None, "simulated": None})
    measured = {"kind": "run", "source": HOSTILE, "engine": HOSTILE, "data_sha256": "0a", "num_requests": 3}
    return {
        "measured": measured,
        "score": "all",
        "num_scored": 3,
        "errors": errors,
        "levels": {"num_running": {"mean_measured": 3.0, "mean_simulated": 3.1, "mean_abs_difference": 0.2}},
        "steps": {"errors": {"decode": {"count": 2, "mape_pct": 1.0, "bias_pct": -0.5}}},
        "warnings": [HOSTILE],
        "subtitle": HOSTILE,
        "shown_in_grey": "",
    }


def validation_page(folder: Path) -> Path:
    write_run(folder)
    (folder / "validation.json").write_text(json.dumps(validation_document()))
    runs = {MEASURED: [0.01, 0.1, 0.9], SIMULATED: [0.011, 0.09, 1.0], "repeat 1": [0.01, 0.11, 0.91]}
    unknown = dict.fromkeys([name for name in LATENCIES if name != "ttft"], np.nan)
    latencies = [pd.DataFrame({"ttft": values, **unknown, "run": name}) for name, values in runs.items()]
    write_table(folder / VALIDATED_LATENCIES, pd.concat(latencies))
    levels = [pd.DataFrame({"time": [0.0, 1.0, 2.0], "num_running": [3, 2, 0], "run": name}) for name in list(runs)[:2]]
    write_table(folder / VALIDATED_LEVELS, pd.concat(levels))
    steps = pd.DataFrame({"kind": "decode", "measured": [0.01, 0.02], "predicted": [0.011, 0.019]})
    write_table(folder / VALIDATED_STEPS, steps)
    return written(write_page(folder))


def written(path: Path | None) -> Path:
    assert path is not None
    return path


PAGES: dict[str, Callable[[Path], Path]] = {
    "run": run_page,
    "sweep": sweep_page,
    "capacity": capacity_page,
    "validation": validation_page,
    "search": search_page,
}
