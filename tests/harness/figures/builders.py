"""Made-up results to draw, and what a chart says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from harness.config import MetricsConfig
from harness.figures.chart import Chart, Panel
from harness.figures.charts.latency import CURVE_PERCENTILES, curve_key
from harness.figures.labels import parameter_label
from harness.results.metrics import summarize
from harness.results.tables import RunResult

PNG = b"\x89PNG\r\n\x1a\n"


def summary_of(result: RunResult, **settings: Any) -> dict[str, Any]:
    return summarize(result, MetricsConfig(**settings))


def texts(chart: Chart) -> str:
    return " ".join([chart.title, chart.subtitle, *(panel.title for panel in chart.panels)])


def panel_of(chart: Chart, title: str) -> Panel:
    return next(panel for panel in chart.panels if panel.title == title)


def table_of(parameters: list[str], load: str | None = None, **columns: list[Any]) -> pd.DataFrame:
    """Configurations with made-up metrics: more of the first column gives more throughput at more latency."""
    count = len(next(iter(columns.values())))
    rng = np.random.default_rng(count)
    throughput = 1000 * np.sqrt(np.arange(1, count + 1)) * rng.uniform(0.8, 1.2, count)
    made: dict[str, Any] = {
        "run": [f"run{number}" for number in range(count)],
        "status": "complete",
        "simulated": True,
        "num_runs": 1,
        "output_throughput": throughput,
        "preemptions": rng.integers(0, 5, count),
        "mean_kv_cache_usage": rng.uniform(0.1, 1, count),
        "prefix_cache_hit_rate": 0.0,
    }
    for name in ("ttft", "tpot"):
        made |= {f"median_{name}_ms": throughput / 50, f"p99_{name}_ms": throughput / 10 * rng.uniform(0.5, 2, count)}
    table = pd.DataFrame({**made, **columns})
    table["label"] = [parameter_label(row, parameters) for row in table.to_dict("records")]
    fixed = {"model": "qwen3-8b", "device": "h100", "seed": "0"}
    table.attrs.update(parameters=parameters, load=load, repeats=False, fixed=fixed, num_failed=0, num_interrupted=0)
    return table


def curves_of(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    curve = np.linspace(0.01, 5, len(CURVE_PERCENTILES))
    rows = table.to_dict("records")
    return {
        curve_key(row, table.attrs["load"]): {"ttft": curve, "tpot": curve / 100, "e2el": curve * 3} for row in rows
    }


RATES = {"arrival.rate": [1.5, 2.5] * 2}
