"""The page of a finished task."""

from pathlib import Path


def write_report_page(folder: Path, out_folder: Path) -> bool:
    """Writes report.html on the result of one task in `folder` to `out_folder`; returns whether there is one."""
    from harness.figures.pages import write_page  # imported late, as other tasks do without it

    path = write_page(folder, out_folder)
    if path is not None:
        print(f"report: {path}", flush=True)
    return path is not None
