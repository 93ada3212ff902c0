"""Figures of one run and of a set of runs. matplotlib is imported when the first one is drawn, not before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.results.tables import Floats, RunResult


def write_run_plots(result: RunResult, summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw latency.png, timeline.png and cache.png of one run into `folder`; returns those for which there is data.

    summary: what `summarize` made of the result; latencies are those of requests inside its window. timeline.png needs
    a step, latency.png a finished request, cache.png a prefix cache hit.
    """
    from harness.plots.latency import draw_latency
    from harness.plots.style import save
    from harness.plots.timeline import draw_cache, draw_timeline

    figures = {
        "latency.png": draw_latency(result, summary),
        "timeline.png": draw_timeline(result, summary),
        "cache.png": draw_cache(result, summary),
    }
    return [save(figure, folder / name) for name, figure in figures.items() if figure is not None]


def write_comparison_plots(
    runs: pd.DataFrame, parameters: Sequence[str], curves: Mapping[str, Mapping[str, Floats]], folder: Path
) -> list[Path]:
    """Draw a set of runs into `folder`: comparison_metrics.png, comparison_pareto.png and comparison_cdfs.png.

    runs: one row per run, with a unique `run`, a `status` and the columns of a summary. parameters: the columns that
    tell the runs apart. curves: by run and latency (ttft, tpot, e2el), its `CURVE_PERCENTILES` in s. Failed runs are
    counted, not drawn; returns the figures for which there is data.
    """
    from harness.plots.compare import draw_metrics
    from harness.plots.style import save
    from harness.plots.tradeoff import draw_curves, draw_pareto

    figures = {
        "comparison_metrics.png": draw_metrics(runs, parameters),
        "comparison_pareto.png": draw_pareto(runs, parameters),
        "comparison_cdfs.png": draw_curves(runs, parameters, curves),
    }
    return [save(figure, folder / name) for name, figure in figures.items() if figure is not None]
