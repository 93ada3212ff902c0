"""The run that confirms the best capacity of a sweep, begun while its last searches are under way: once they have
ended it would be alone, and all cores but one idle, for a sixth of the time of a sweep.

It is of the best so far. If another search turns out to be better, it is dropped and leaves nothing.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from harness.config import load
from harness.errors import TwinServeError
from harness.studies.capacity.capacity import confirm
from harness.studies.capacity.table import read_document
from harness.studies.capacity.worker_pool import end_processes


class EarlyConfirmation:
    """Of the search in `folder`, which has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_decided = threading.Event()
        self._is_best = False

    def run(self) -> None:
        """Run it, in a thread of its own. Once it is decided that the search is the best, what was run stands among its
        probes, where the end of the sweep finds it."""
        # what goes wrong here is told when the end of the sweep runs it once more
        with (
            suppress(TwinServeError, OSError, KeyboardInterrupt),
            TemporaryDirectory(prefix=".confirming-", dir=self._folder) as temporary,
        ):
            low = read_document(self._folder)["rows"][0]["low"]
            confirm(load(self._folder / "config.yaml"), low, Path(temporary), Console(quiet=True))
            self._is_decided.wait()
            for probe in (Path(temporary) / "probes").iterdir() if self._is_best else ():
                os.replace(probe, self._folder / "probes" / probe.name)

    def decide(self, best: Path | None) -> None:
        """All searches have ended, and that in the folder `best` is the best; None drops this run in any case. Only the
        first call counts."""
        if self._is_decided.is_set():
            return
        self._is_best = best == self._folder
        self._is_decided.set()
        if not self._is_best:
            end_processes()
