"""What a search for a capacity found, for Python."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from rich.console import Console

from harness.figures.pages.text import page_text
from harness.results.stored.files import REPORT
from harness.studies.capacity.table import print_table


@dataclass(frozen=True, eq=False, repr=False)
class FoundCapacity:
    """A search that has ended.

    Attributes:
        document: all that was found, as capacity.json has it.
        folder: of the runs of the search; it vanishes with this object unless the search was given one.
        kept: keeps a temporary folder.
    """

    document: dict[str, Any]
    folder: Path
    kept: TemporaryDirectory[str] | None = None

    @property
    def capacity(self) -> float | None:
        """The highest load at which the SLO holds; None where it held, or failed, at every load tried."""
        value: float | None = self.document["rows"][0]["capacity"]
        return value

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The 95 % interval of the capacity."""
        row = self.document["rows"][0]
        return row["low"], row["high"]

    @property
    def probes(self) -> pd.DataFrame:
        """A row per run of the search."""
        return pd.json_normalize(self.document["rows"][0]["probes"])

    def report(self, path: str | Path | None = None) -> str:
        """The page on the search as HTML; written to `path` if one is given."""
        return page_text(self.folder, path)

    def save(self, folder: str | Path) -> Path:
        """Leave in `folder` what the command line leaves there; returns the folder."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        self.report(Path(folder) / REPORT)
        return Path(folder)

    def __repr__(self) -> str:
        text = StringIO()
        print_table(self.document, Console(file=text, width=100))
        return text.getvalue().strip()
