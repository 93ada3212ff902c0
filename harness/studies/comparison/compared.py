"""Runs compared, for Python: those of a sweep, or earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from rich.console import Console

from harness.errors import TwinServeError
from harness.figures.pages import write_comparison_page
from harness.figures.pages.text import copied
from harness.studies.comparison.comparison import compare_folders
from harness.studies.comparison.comparison_table import print_comparison
from harness.studies.outcome import Run


@dataclass(frozen=True, eq=False, repr=False)
class ComparedRuns:
    """Runs in one table.

    Attributes:
        table: a row per configuration and load, with means and intervals over seeds, and differences from the baseline
            in percent.
        by_run: a row per run.
        runs: those of this process, by name.
        failed: what went wrong in the others, by name.
    """

    table: pd.DataFrame
    by_run: pd.DataFrame
    runs: Mapping[str, Run]
    failed: Mapping[str, TwinServeError]

    @classmethod
    def of(
        cls,
        runs: Mapping[str, Run],
        failed: Mapping[str, TwinServeError],
        folders: Sequence[Path] = (),
        baseline: str | int | None = None,
    ) -> ComparedRuns:
        """Compares runs of this process with those in folders.

        Raises:
            ConfigError: no configuration is called like the baseline.
        """
        if not runs and not folders:
            return cls(pd.DataFrame(), pd.DataFrame(), {}, failed)
        with TemporaryDirectory(prefix="twinserve-") as place:
            stored = _stored(runs, Path(place))
            names = [*stored, *(folder.as_posix() for folder in folders)]
            compared = compare_folders([*stored.values(), *folders], baseline, names)
        unread = compared.runs[compared.runs["status"] == "failed"] if len(compared.runs) else compared.runs
        damaged = {str(row["run"]): TwinServeError(str(row["error"])) for _, row in unread.iterrows()}
        return cls(compared.table, compared.runs, dict(runs), {**failed, **damaged})

    def report(self, path: str | Path | None = None) -> str:
        """The page that compares the runs, as HTML; written to `path` if one is given.

        Raises:
            TwinServeError: no run is left to compare.
            OSError: it cannot be written.
        """
        if self.table.empty:
            raise TwinServeError("no run that could be compared")
        with TemporaryDirectory(prefix="twinserve-") as place:
            stored = {name: str(folder) for name, folder in _stored(self.runs, Path(place)).items()}
            folders = [stored.get(name, folder) for name, folder in self.by_run[["run", "folder"]].to_numpy()]
            return copied(write_comparison_page(self.by_run.assign(folder=folders), self.table, Path(place)), path)

    def __repr__(self) -> str:
        text = StringIO()
        self._print(Console(file=text, width=100))
        return text.getvalue().strip()

    def _repr_html_(self) -> str:
        """The table that the terminal shows."""
        console = Console(record=True, file=StringIO(), width=120)
        self._print(console)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")

    def _print(self, console: Console) -> None:
        if len(self.by_run):
            print_comparison(self.by_run, self.table, console)
        for name, error in self.failed.items():
            console.print(f"! {name} failed: {error}", style="red", markup=False, highlight=False)


def _stored(runs: Mapping[str, Run], place: Path) -> dict[str, Path]:
    """Folders with what pages and comparisons read of the runs, by their names."""
    folders = {name: place / str(number) for number, name in enumerate(runs)}
    for name, folder in folders.items():
        runs[name].store(folder)
    return folders
