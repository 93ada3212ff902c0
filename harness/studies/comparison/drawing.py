"""task=plot: draws stored results again: runs, sets of runs, profiles, calibrations and validations, as `plot` says."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from engine.documents import errors_as, read_yaml, user_path
from harness.config import RunConfig
from harness.config.schema.tasks.plotting import PlotConfig
from harness.config.schema.traffic.reader import nearest
from harness.errors import ConfigError, TwinServeError
from harness.figures import write_charts, write_comparison_charts, write_run_charts, write_validation_charts
from harness.figures.charts.calibration import calibration_chart
from harness.figures.charts.profile import profile_chart
from harness.results.stored.files import CALIBRATION, VALIDATION, read_results
from harness.studies.comparison.comparison import read_compared
from harness.studies.comparison.folders import expand_results
from simulator.profile.profile import META, Profile, ProfileError
from simulator.profile.profile_folder import load_profile


def draw(config: RunConfig, out_folder: Path) -> None:
    """Draw what the folders in `config.results` hold into `out_folder`, and name the files.

    A single run gets the figures of a run, several those of a comparison, or the one that the axes of `plot` ask for;
    profiles, calibrations and validations get their own, numbered where there are several.

    Raises:
        TwinServeError: a folder holds nothing to draw, or what it holds cannot be read; `plot` names no column.
    """
    paths: list[Path] = []
    runs = []
    for number, name in enumerate(config.results):
        suffix = f"_{number}" if len(config.results) > 1 else ""
        folder = user_path(name)
        if found := _profile_folders(folder):
            for each in found:
                tag = suffix if len(found) == 1 else f"{suffix}_{each.name}"
                paths += write_charts({f"profile{tag}": profile_chart(_profile(each))}, out_folder, config.plot)
        elif (folder / CALIBRATION).is_file():
            chart = calibration_chart(_calibration(folder), config.plot)
            paths += write_charts({f"calibration{suffix}": chart}, out_folder, config.plot)
        elif (folder / VALIDATION).is_file():
            paths += write_validation_charts(folder, out_folder, config.plot, suffix)
        else:
            runs.append(name)
    if runs:
        paths += _draw_runs(expand_results(runs), out_folder, config.plot)
    print(f"figures in {out_folder}: {', '.join(path.name for path in paths) or 'none, for lack of data'}", flush=True)


def _draw_runs(folders: list[Path], out_folder: Path, plot: PlotConfig) -> list[Path]:
    if len(folders) == 1:
        return write_run_charts(*read_results(folders[0]), out_folder, plot)
    runs, table, curves = read_compared(folders)
    for _, row in runs[runs["status"] == "failed"].iterrows():
        print(f"! {row['run']} left out: {row['error']}", flush=True)
    if table.empty:
        raise TwinServeError("results: no run that could be read")
    _check_columns(table, plot)
    return write_comparison_charts(table, curves, out_folder, plot)


def _check_columns(table: pd.DataFrame, plot: PlotConfig) -> None:
    """Raises ConfigError for a key of `plot` that names no column, or one of text where numbers are drawn."""
    columns = list(map(str, table.columns))
    named = [("x", plot.x), ("color", plot.color), ("facet", plot.facet), *(("y", name) for name in plot.y)]
    for key, name in named:
        if name is not None and name not in columns:
            raise ConfigError(f"plot.{key}={name}: no column of comparison.csv{nearest(name, columns)}")
        if key == "y" and not pd.api.types.is_numeric_dtype(table[name]):
            raise ConfigError(f"plot.y={name}: holds no numbers")


def _profile_folders(folder: Path) -> list[Path]:
    """The folder if it is a profile, or those of its ranks below it."""
    return [folder] if (folder / META).is_file() else sorted(path.parent for path in folder.glob(f"tp*/{META}"))


def _profile(folder: Path) -> Profile:
    try:
        return load_profile(folder)
    except ProfileError as error:
        raise TwinServeError(f"{folder}: {error}") from error


def _calibration(folder: Path) -> dict[str, object]:
    with errors_as(TwinServeError, f"{folder / CALIBRATION}"):
        document = read_yaml(folder / CALIBRATION, numbers="any")
    if not isinstance(document, dict) or not isinstance(document.get("constants"), dict):
        raise TwinServeError(f"{folder / CALIBRATION}: not a calibration")
    return document
