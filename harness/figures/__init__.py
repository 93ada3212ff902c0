"""Charts: each is described once in `charts`; `drawing` draws it into files and `browser` on the pages of `pages`.

matplotlib is imported when the first file is drawn, not before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.chart import Chart
from harness.results.tables import Floats, RunResult

if TYPE_CHECKING:
    import pandas as pd


def write_charts(charts: Mapping[str, Chart | None], folder: Path, plot: PlotConfig) -> list[Path]:
    """Draw the charts for which there is data into `folder`; keys are names of files without a suffix."""
    from harness.figures.drawing import write_charts

    return write_charts(charts, folder, plot)


def write_run_charts(result: RunResult, summary: Mapping[str, Any], folder: Path, plot: PlotConfig) -> list[Path]:
    """Draw latency, timeline and cache of one run into `folder`; returns the files of those for which there is data.

    summary: what `summarize` made of the result; latencies are those of requests inside its window. The timeline needs
    a step, latency a finished request, cache a prefix cache hit.
    """
    from harness.figures.charts.latency import latency_chart
    from harness.figures.charts.timeline import cache_chart, timeline_chart

    charts = {
        "latency": latency_chart(result, summary),
        "timeline": timeline_chart(result, summary, plot),
        "cache": cache_chart(result, summary),
    }
    return write_charts(charts, folder, plot)


def write_comparison_charts(
    table: pd.DataFrame, curves: Mapping[str, Mapping[str, Floats]], folder: Path, plot: PlotConfig
) -> list[Path]:
    """Draw comparison_metrics, comparison_frontier and comparison_latency of a set of configurations into `folder`.

    table: a row per configuration and load, as `harness.studies.comparison.repeats` makes it. curves: by `curve_key`
    and latency (ttft, tpot, e2el), its `CURVE_PERCENTILES` in s. Where `plot` chooses axes, the one figure that it asks
    for is drawn, comparison. Returns the files of the figures for which there is data.
    """
    from harness.figures.charts.compare import metrics_chart
    from harness.figures.charts.latency import distributions_chart
    from harness.figures.charts.tradeoff import frontier_chart

    if plot.has_axes:
        return write_charts({"comparison": metrics_chart(table, plot)}, folder, plot)
    charts = {
        "comparison_metrics": metrics_chart(table, plot),
        "comparison_frontier": frontier_chart(table, plot),
        "comparison_latency": distributions_chart(table, curves, plot),
    }
    return write_charts(charts, folder, plot)


def write_validation_charts(folder: Path, out_folder: Path, plot: PlotConfig, suffix: str = "") -> list[Path]:
    """Draw the validation in `folder` into `out_folder`; returns the files, whose names end in `suffix`.

    Raises:
        TwinServeError: a file of the validation is missing or cannot be read; `plot.y` names nothing that it has.
    """
    from harness.figures.charts.validation import stored_charts

    charts = stored_charts(folder, plot)
    return write_charts({f"{name}{suffix}": chart for name, chart in charts.items()}, out_folder, plot)
