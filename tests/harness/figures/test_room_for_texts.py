"""Texts stay inside their figure, at the width of a column and of a page of a paper."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.config.plotting import PlotConfig
from harness.figures import validation
from harness.figures.charts.calibration import draw_calibration
from harness.figures.charts.closed_loops import draw_rows
from harness.figures.charts.compare import draw_metrics
from harness.figures.charts.latency import draw_distributions, draw_latency
from harness.figures.charts.profile import draw_profile
from harness.figures.charts.timeline import draw_cache, draw_timeline
from harness.figures.charts.tradeoff import draw_frontier
from harness.figures.style import styled, write_figures
from harness.results.latencies import LATENCIES
from harness.results.tables import RunResult
from simulator.profile.files import load_profile
from tests.harness.builders import ROOT
from tests.harness.figures.builders import RATES, curves_of, summary_of, table_of
from tests.harness.made_up_results import heavy_tailed_requests, run_toy_engine

_QUICK = ("timeline", "cache", "calibration", "validation levels", "validation latencies")  # and with most text
Draw = Callable[[PlotConfig], Figure | None]
_FROM = "MEASURED: TwinServe engine=cpu on a processor with a long name, 1 thread · SIMULATED: qwen3-8b, cost roofline"


@pytest.fixture(scope="module")
def result() -> RunResult:
    return run_toy_engine(heavy_tailed_requests(200, 60, hit_share=0.4), num_blocks=700)


def of_a_run(draw: Callable[..., Figure | None]) -> Callable[[RunResult], Draw]:
    return lambda result: lambda plot: draw(result, summary_of(result, slo={"ttft_ms": 500, "tpot_ms": 40}), plot)


def of_a_comparison(result: RunResult, draw: Callable[..., Figure | None], *more: Any) -> Draw:
    table = table_of(["scheduler"], "arrival.rate", **RATES, scheduler=["vllm", "vllm", "mixed", "mixed"])
    return lambda plot: draw(table, *(each(table) for each in more), plot)


def of_a_calibration(result: RunResult) -> Draw:
    names = ("memory_efficiency", "flops_efficiency", "step_overhead_s")
    objective = {"before": 0.9603, "after": 0.4728, "evaluations": 400, "start": dict.fromkeys(names, 0.5)}
    objective |= {"limits": dict.fromkeys(names, [0.05, 1.0])}
    objective |= {
        f"errors_{when}": {"decode steps, RMS": 0.97, "prefill steps, RMS": 0.4} for when in ("before", "after")
    }
    fitted_on = {"engine": "TwinServe engine=cpu on a processor with a long name, 1 thread", "num_requests": 40}
    constants = dict.fromkeys(names, 0.1234)
    document = {"cost": "roofline", "constants": constants, "objective": objective, "fitted_on": fitted_on}
    return lambda plot: draw_calibration(document, plot)


def of_latencies(result: RunResult) -> Draw:
    errors = pd.DataFrame(
        [(name, statistic, -96.4) for name in LATENCIES for statistic in ("mean", "median", "p99")],
        columns=["metric", "statistic", "error_pct"],
    )
    requests = result.requests
    return lambda plot: validation.draw_latencies(requests, requests, [requests], errors, _FROM, plot)


def of_levels(result: RunResult) -> Draw:
    names = ("num_running", "num_waiting", "kv_cache_usage", "num_unfinished")
    table = pd.DataFrame({"time": np.arange(50.0), **{name: np.linspace(0, 1, 50) for name in names}})
    levels = {name: {"mean_abs_difference": 0.123} for name in names}
    return lambda plot: validation.draw_levels(table, table, levels, _FROM, plot)


def of_steps(result: RunResult) -> Draw:
    kinds = ("prefill", "decode", "mixed")
    times = np.geomspace(1e-3, 0.2, 30)
    steps = pd.DataFrame({"kind": np.resize(kinds, 30), "measured": times, "predicted": times * 1.2})
    errors = {kind: {"count": 12345, "mape_pct": 20.0, "bias_pct": 20.0} for kind in (*kinds, "all")}
    return lambda plot: validation.draw_steps(steps, errors, 2, _FROM, plot)


def of_rows(result: RunResult) -> Draw:
    values = np.geomspace(3, 30_000, 40)
    columns = ("ttft_ms", "tpot_ms", "simulated_ttft_ms", "simulated_tpot_ms")
    table = pd.DataFrame({name: values for name in columns})
    table["case"] = np.resize(["llama-3.1-70b, H100", "gpt-oss-120b, B200", "deepseek-r1, B200"], 40)
    return lambda plot: draw_rows(table, _FROM, plot, by="case", title="model, GPU")


KINDS: dict[str, Callable[[RunResult], Draw]] = {
    "latency": of_a_run(draw_latency),
    "timeline": of_a_run(draw_timeline),
    "cache": of_a_run(draw_cache),
    "metrics": lambda result: of_a_comparison(result, draw_metrics),
    "frontier": lambda result: of_a_comparison(result, draw_frontier),
    "distributions": lambda result: of_a_comparison(result, draw_distributions, curves_of),
    "profile": lambda _: lambda plot: draw_profile(load_profile(ROOT / "simulator/profiles/amd-epyc/tiny/tp1"), plot),
    "calibration": of_a_calibration,
    "validation latencies": of_latencies,
    "validation levels": of_levels,
    "validation steps": of_steps,
    "validation rows": of_rows,
}


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
def test_no_text_is_cut_off(kind: str, width: Any, result: RunResult) -> None:
    with styled():
        figure = KINDS[kind](result)(PlotConfig(width=width))
        assert figure is not None
        assert cut_off(figure) == []


@pytest.mark.parametrize("width", ["column", "page"])
def test_names_of_constants_do_not_overlap(width: Any, result: RunResult) -> None:
    with styled():
        figure = of_a_calibration(result)(PlotConfig(width=width))
        assert figure is not None
        figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = sorted((label.get_window_extent() for label in axes.get_yticklabels()), key=lambda box: box.y0)
        assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))


@pytest.mark.parametrize("kind", ["validation rows", pytest.param("validation steps", marks=pytest.mark.slow)])
def test_every_format_asked_for_is_written(kind: str, result: RunResult, tmp_path: Path) -> None:
    plot = PlotConfig(formats=("svg", "pdf"), width="column", labels={"Mixed steps": "BOTH", "Mean TTFT": "FIRST"})
    with styled():
        figure = KINDS[kind](result)(plot)
        paths = write_figures({"x": figure}, tmp_path, plot)
    assert [path.suffix for path in paths] == [".svg", ".pdf"]
    assert figure is not None and figure.get_figwidth() == pytest.approx(3.35)
    titles = {axes.get_title(loc="left") for axes in figure.axes}
    assert titles & {"BOTH", "FIRST"} and not titles & {"Mixed steps", "Mean TTFT"}
