"""report.html: one self-contained file on a run, a sweep, a capacity search or a validation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.figures.pages.page import Page
from harness.results.stored.files import CAPACITY, REPORT, SEARCH, SUMMARY, VALIDATION

if TYPE_CHECKING:
    import pandas as pd


def write_page(folder: Path, out_folder: Path | None = None) -> Path | None:
    """Write report.html on the result in `folder` to `out_folder`, or to `folder` itself.

    Returns its path; None where the folder holds no result of one task that has a page.

    Raises:
        TwinServeError: the result cannot be read, or the plotting library is not installed.
    """
    page = _page_of(folder)
    if page is None:
        return None
    path = (out_folder or folder) / REPORT
    path.parent.mkdir(parents=True, exist_ok=True)
    page.write(path)
    return path


def write_comparison_page(runs: pd.DataFrame, configurations: pd.DataFrame, out_folder: Path) -> Path:
    """Write report.html on many runs to `out_folder`; the tables are those of `sweep_page`. Returns its path."""
    from harness.figures.pages.sweep_page import sweep_page

    path = out_folder / REPORT
    sweep_page(runs, configurations, out_folder).write(path)
    return path


def _page_of(folder: Path) -> Page | None:
    """The page of what a task left in `folder`; a validation leaves the run that it simulated there too."""
    if (folder / CAPACITY).exists():
        from harness.figures.pages.capacity_page import capacity_page

        return capacity_page(folder)
    if (folder / SEARCH).exists():
        from harness.figures.pages.search_page import search_page

        return search_page(folder)
    if (folder / VALIDATION).exists():
        from harness.figures.pages.validation_page import validation_page

        return validation_page(folder)
    if (folder / SUMMARY).exists():
        from harness.figures.pages.run_page import run_page

        return run_page(folder)
    return None
