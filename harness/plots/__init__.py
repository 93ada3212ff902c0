"""Figures of one run, of a set of runs, of profiles, calibrations and validations. matplotlib is imported when the
first one is drawn, not before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from harness.config.plotting import PlotConfig
from harness.results.tables import Floats, RunResult
from simulator.profile.profile import Profile


def write_run_plots(result: RunResult, summary: Mapping[str, Any], folder: Path, plot: PlotConfig) -> list[Path]:
    """Draw latency, timeline and cache of one run into `folder`; returns the files of those for which there is data.

    summary: what `summarize` made of the result; latencies are those of requests inside its window. The timeline needs
    a step, latency a finished request, cache a prefix cache hit.
    """
    from harness.plots.latency import draw_latency
    from harness.plots.style import styled, write_figures
    from harness.plots.timeline import draw_cache, draw_timeline

    with styled():
        figures = {
            "latency": draw_latency(result, summary, plot),
            "timeline": draw_timeline(result, summary, plot),
            "cache": draw_cache(result, summary, plot),
        }
        return write_figures(figures, folder, plot)


def write_comparison_plots(
    table: pd.DataFrame, curves: Mapping[str, Mapping[str, Floats]], folder: Path, plot: PlotConfig
) -> list[Path]:
    """Draw comparison_metrics, comparison_frontier and comparison_latency of a set of configurations into `folder`.

    table: a row per configuration and load, as `harness.sweeps.repeats` makes it. curves: by `curve_key` and latency
    (ttft, tpot, e2el), its `CURVE_PERCENTILES` in s. Where `plot` chooses axes, the one figure that it asks for is
    drawn, comparison. Returns the files of the figures for which there is data.
    """
    from harness.plots.compare import draw_metrics
    from harness.plots.latency import draw_distributions
    from harness.plots.style import styled, write_figures
    from harness.plots.tradeoff import draw_frontier

    with styled():
        if plot.x or plot.y or plot.color or plot.facet:
            return write_figures({"comparison": draw_metrics(table, plot)}, folder, plot)
        figures = {
            "comparison_metrics": draw_metrics(table, plot),
            "comparison_frontier": draw_frontier(table, plot),
            "comparison_latency": draw_distributions(table, curves, plot),
        }
        return write_figures(figures, folder, plot)


def write_profile_plot(profile: Profile, folder: Path, plot: PlotConfig, name: str = "profile") -> list[Path]:
    """Draw the operator times of a profile by shape; returns the files."""
    from harness.plots.profile import draw_profile
    from harness.plots.style import styled, write_figures

    with styled():
        return write_figures({name: draw_profile(profile, plot)}, folder, plot)


def write_calibration_plot(
    document: Mapping[str, Any], folder: Path, plot: PlotConfig, name: str = "calibration"
) -> list[Path]:
    """Draw the constants and errors in the content of a calibration.yaml; returns the files."""
    from harness.plots.calibration import draw_calibration
    from harness.plots.style import styled, write_figures

    with styled():
        return write_figures({name: draw_calibration(document, plot)}, folder, plot)


def write_validation_plots(folder: Path, out_folder: Path, plot: PlotConfig, suffix: str = "") -> list[Path]:
    """Draw the validation in `folder` into `out_folder`; returns the files, whose names end in `suffix`.

    Raises:
        TwinServeError: a file of the validation is missing or cannot be read; `plot.y` names nothing that it has.
    """
    from harness.plots.stored_validation import draw_validation
    from harness.plots.style import styled, write_figures

    with styled():
        figures = draw_validation(folder, plot)
        return write_figures({f"{name}{suffix}": figure for name, figure in figures.items()}, out_folder, plot)
