"""Texts stay inside their figure, at the width of a column and of a page of a paper."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.config.schema.tasks.plotting import AS_USUAL, PlotConfig
from harness.figures.browser import panels_data
from harness.figures.chart import Chart
from harness.figures.charts import validation
from harness.figures.charts.calibration import calibration_chart
from harness.figures.charts.capacity import capacities_chart, probes_chart
from harness.figures.charts.closed_loops import rows_chart
from harness.figures.charts.compare import metrics_chart
from harness.figures.charts.latency import distributions_chart, latency_chart
from harness.figures.charts.profile import profile_chart
from harness.figures.charts.requests import requests_chart
from harness.figures.charts.timeline import cache_chart, timeline_chart
from harness.figures.charts.tradeoff import frontier_chart
from harness.figures.drawing import draw, write_charts
from harness.figures.style import styled
from harness.results.statistics.latencies import LATENCIES
from harness.results.tables import RunResult
from simulator.profile.profile_folder import load_profile
from tests.harness.builders import ROOT
from tests.harness.figures.builders import RATES, curves_of, summary_of, table_of
from tests.harness.results.builders import heavy_tailed_requests, run_toy_engine

_QUICK = ("timeline", "cache", "calibration", "validation levels", "validation latencies")  # and with most text
Make = Callable[[RunResult, PlotConfig], Chart | None]
_FROM = "MEASURED: TwinServe engine=cpu on a processor with a long name, 1 thread · SIMULATED: qwen3-8b, cost roofline"


@pytest.fixture(scope="module")
def result() -> RunResult:
    return run_toy_engine(heavy_tailed_requests(200, 60, hit_share=0.4), num_blocks=700)


def summarized(result: RunResult) -> dict[str, Any]:
    return summary_of(result, slo={"ttft_ms": 500, "tpot_ms": 40})


COMPARED = table_of(["scheduler"], "arrival.rate", **RATES, scheduler=["vllm", "vllm", "mixed", "mixed"])


def of_a_calibration(result: RunResult, plot: PlotConfig) -> Chart:
    names = ("memory_efficiency", "flops_efficiency", "step_overhead_s")
    objective = {"before": 0.9603, "after": 0.4728, "evaluations": 400, "start": dict.fromkeys(names, 0.5)}
    objective |= {"limits": dict.fromkeys(names, [0.05, 1.0])}
    objective |= {
        f"errors_{when}": {"decode steps, RMS": 0.97, "prefill steps, RMS": 0.4} for when in ("before", "after")
    }
    fitted_on = {"engine": "TwinServe engine=cpu on a processor with a long name, 1 thread", "num_requests": 40}
    constants = dict.fromkeys(names, 0.1234)
    document = {"cost": "roofline", "constants": constants, "objective": objective, "fitted_on": fitted_on}
    return calibration_chart(document, plot)


def of_latencies(result: RunResult, plot: PlotConfig) -> Chart | None:
    errors = pd.DataFrame(
        [(name, statistic, -96.4) for name in LATENCIES for statistic in ("mean", "median", "p99")],
        columns=["metric", "statistic", "error_pct"],
    )
    runs = dict.fromkeys(("measured", "simulated", "repeat 1"), result.requests)
    return validation.latencies_chart(runs, errors, _FROM, plot)


def of_levels(result: RunResult, plot: PlotConfig) -> Chart | None:
    names = ("num_running", "num_waiting", "kv_cache_usage", "num_unfinished")
    table = pd.DataFrame({"time": np.arange(50.0), **{name: np.linspace(0, 1, 50) for name in names}})
    levels = {name: {"mean_abs_difference": 0.123} for name in names}
    return validation.levels_chart(table, table, levels, _FROM)


def of_steps(result: RunResult, plot: PlotConfig) -> Chart | None:
    kinds = ("prefill", "decode", "mixed")
    times = np.geomspace(1e-3, 0.2, 30)
    steps = pd.DataFrame({"kind": np.resize(kinds, 30), "measured": times, "predicted": times * 1.2})
    errors = {kind: {"count": 12345, "mape_pct": 20.0, "bias_pct": 20.0} for kind in (*kinds, "all")}
    return validation.steps_chart(steps, errors, _FROM)


def of_rows(result: RunResult, plot: PlotConfig) -> Chart:
    values = np.geomspace(3, 30_000, 40)
    columns = ("ttft_ms", "tpot_ms", "simulated_ttft_ms", "simulated_tpot_ms")
    table = pd.DataFrame({name: values for name in columns})
    table["case"] = np.resize(["llama-3.1-70b, H100", "gpt-oss-120b, B200", "deepseek-r1, B200"], 40)
    return rows_chart(table, _FROM, by="case", title="model, GPU")


def of_capacities(result: RunResult, plot: PlotConfig) -> Chart | None:
    rows = [
        {"name": f"a long name of number {i}", "capacity": 3.0 * i, "low": 2.0 * i, "high": None, "per_gpu": 1.0,
         "num_gpus": 2} for i in range(1, 5)
    ]  # fmt: skip
    return capacities_chart(rows, "requests/s")


def of_probes(result: RunResult, plot: PlotConfig) -> Chart | None:
    probes = [{"value": i, "holds": i < 3, "ttft_ms": 100.0 * i} for i in range(1, 5)]
    rows = [{"name": f"a long name of number {i}", "probes": probes} for i in range(4)]
    return probes_chart(rows, {"ttft": 250.0, "percentile": 99}, "arrival.rate", "requests/s")


KINDS: dict[str, Make] = {
    "latency": lambda result, plot: latency_chart(result, summarized(result)),
    "timeline": lambda result, plot: timeline_chart(result, summarized(result), plot),
    "cache": lambda result, plot: cache_chart(result, summarized(result)),
    "requests": lambda result, plot: requests_chart(result.requests, {"ttft": 500}),
    "metrics": lambda _, plot: metrics_chart(COMPARED, plot),
    "frontier": lambda _, plot: frontier_chart(COMPARED, plot),
    "distributions": lambda _, plot: distributions_chart(COMPARED, curves_of(COMPARED), plot),
    "profile": lambda _, plot: profile_chart(load_profile(ROOT / "simulator/profiles/amd-epyc/tiny/tp1")),
    "calibration": of_a_calibration,
    "capacities": of_capacities,
    "probes": of_probes,
    "validation latencies": of_latencies,
    "validation levels": of_levels,
    "validation steps": of_steps,
    "validation rows": of_rows,
}


def drawn(kind: str, result: RunResult, plot: PlotConfig) -> Figure:
    chart = KINDS[kind](result, plot)
    assert chart is not None
    with styled():
        return draw(chart, plot)


def cut_off(figure: Figure) -> list[str]:
    """Texts of which a part is outside the figure; a point of tolerance, as letters do not fill their boxes. Labels of
    ticks are left out: those beyond the limits of their axis are not drawn."""
    figure.draw_without_rendering()
    edges = figure.bbox.padded(figure.dpi / 72)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    ticks = {text for axes in shown for axis in (axes.xaxis, axes.yaxis) for text in axis.findobj(Text)}
    labels = {label for axes in shown for label in (axes.xaxis.label, axes.yaxis.label)}
    texts = [each for parent in (*shown, *figure.texts, *figure.legends) for each in parent.findobj(Text)]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text in labels or text not in ticks]
    return [
        text
        for text, box in boxes
        if text.strip() and (box.x0 < edges.x0 or box.x1 > edges.x1 or box.y0 < edges.y0 or box.y1 > edges.y1)
    ]


@pytest.mark.parametrize("width", ["column", pytest.param("page", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in _QUICK else [pytest.mark.slow]) for kind in KINDS]
)
@pytest.mark.long
def test_no_text_is_cut_off(kind: str, width: Any, result: RunResult) -> None:
    with styled():
        assert cut_off(drawn(kind, result, PlotConfig(width=width))) == []


@pytest.mark.parametrize("width", ["column", "page"])
def test_names_of_constants_do_not_overlap(width: Any, result: RunResult) -> None:
    with styled():
        figure = drawn("calibration", result, PlotConfig(width=width))
        figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = sorted((label.get_window_extent() for label in axes.get_yticklabels()), key=lambda box: box.y0)
        assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["validation rows", pytest.param("validation steps", marks=pytest.mark.slow)])
def test_every_format_asked_for_is_written(kind: str, result: RunResult, tmp_path: Path) -> None:
    plot = PlotConfig(formats=("svg", "pdf"), width="column", labels={"Mixed steps": "BOTH", "Mean TTFT": "FIRST"})
    paths = write_charts({"x": KINDS[kind](result, plot)}, tmp_path, plot)
    assert [path.suffix for path in paths] == [".svg", ".pdf"]
    assert [path.read_bytes()[:4] for path in paths] == [b"<?xm", b"%PDF"]
    figure = drawn(kind, result, plot)
    assert figure.get_figwidth() == pytest.approx(3.35)
    titles = {axes.get_title(loc="left") for axes in figure.axes}
    assert titles & {"BOTH", "FIRST"} and not titles & {"Mixed steps", "Mean TTFT"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_is_told_to_a_page(kind: str, result: RunResult) -> None:
    chart = KINDS[kind](result, AS_USUAL)
    assert chart is not None
    panels = json.loads(json.dumps(panels_data(chart), allow_nan=False))
    assert [panel["title"] for panel in panels] == [panel.title for panel in chart.panels]
    for panel in panels:
        for series in panel["series"]:
            assert len(series["x"]) == len(series["y"]) > 0
