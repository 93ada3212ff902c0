"""report.html: one self-contained file on a run, a sweep, a capacity search or a validation."""

from __future__ import annotations

from pathlib import Path

from harness.report.page import PAGE
from harness.report.run_page import run_page


def write_page(folder: Path, out_folder: Path | None = None) -> Path:
    page = run_page(folder)
    path = (out_folder or folder) / PAGE
    page.write(path)
    return path
