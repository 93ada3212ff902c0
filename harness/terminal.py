"""What the command line shows and writes of a run and of a search for a capacity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from harness import api, interrupts
from harness.config import RunConfig
from harness.engines.availability import check_server
from harness.record.progress_bar import Terminal
from harness.results.stored.files import CAPACITY
from harness.results.summary import print_summary


def run(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Run `config`, leave everything in `folder`, print the summary and return it.

    Raises:
        TwinServeError: the trace or the configuration cannot be used.
        EngineError, KeyboardInterrupt: the run could not go on, or was interrupted. As after any exception of the
            engine, the tables up to then have been written, marked incomplete.
    """
    console = Console()
    outcome = api.serve(config, watch=Terminal(config, console), write=lambda run: run.write(folder))
    print_summary(outcome.summary, console)
    console.print(f"results: {folder}", highlight=False, soft_wrap=True)
    outcome.check(folder)
    return outcome.summary


def capacity(config: RunConfig, folder: Path, given: Sequence[str] = (), *, confirms: bool = True) -> dict[str, Any]:
    """Search in `folder` as `config.capacity` says, print what was found and return it; raises as
    `harness.studies.capacity.capacity.find`."""
    with interrupts.held():
        from harness.studies.capacity.capacity import find  # imported late, as a run does without them
        from harness.studies.capacity.table import print_table, read_document

    console = Console()
    try:
        return find(config, folder, given, console, confirms=confirms)
    finally:
        if (folder / CAPACITY).exists():  # of an interrupted search, too
            print_table(read_document(folder), console)
            console.print(f"results: {folder}", highlight=False, soft_wrap=True)


def serve(config: RunConfig, folder: Path) -> None:
    """Be a server until a signal comes, as `config.serve` says; raises ConfigError."""
    check_server()
    with interrupts.held():
        from harness.engines.serving.serve import serve  # imported late, as it brings a web framework

    console = Console()
    serve(config, folder, lambda address: console.print(f"serving at {address}", highlight=False))
