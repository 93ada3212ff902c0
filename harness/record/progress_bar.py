"""Who watches a run, and the progress bar: requests done, time in the run, how fast it goes, and the time left."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console

from harness.config import RunConfig
from harness.record.record import Record

_REFRESH_S = 0.2


class Watch:
    """Who is told how a run goes: nobody. A terminal overrides this."""

    def serving(self, record: Record, num_requests: int, about: Sequence[str]) -> AbstractContextManager[None]:
        """Entered while the run serves. about: lines on its KV pool and on where its step times come from."""
        return nullcontext()

    def tell(self, text: str) -> None:
        """A line on what was decided."""


UNWATCHED = Watch()


@contextmanager
def progress_bar(record: Record, total: int, *, simulated: bool, enabled: bool, console: Console) -> Iterator[None]:
    """Show how far `record` is, from a thread that only reads its counters, so that the run does no work for it."""
    if not enabled or not console.is_terminal:
        yield
        return
    # imported late, as a run whose output goes elsewhere does without it
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(bar_width=10),
        TextColumn("{task.completed:,}/{task.total:,} requests  {task.fields[clock]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    done = threading.Event()
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=total, clock="")

        def show() -> None:
            clock = clock_text(record, progress.tasks[0].elapsed or 0.0, simulated=simulated)
            progress.update(task, completed=record.num_done, clock=clock)
            progress.refresh()

        def watch() -> None:
            while not done.wait(_REFRESH_S):
                show()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            show()


class Terminal(Watch):
    """Shows a run on a console, as the configuration asks for it."""

    def __init__(self, config: RunConfig, console: Console) -> None:
        self._config = config
        self._console = console

    @contextmanager
    def serving(self, record: Record, num_requests: int, about: Sequence[str]) -> Iterator[None]:
        console, config = self._console, self._config
        for line in about if config.verbose else ():
            console.print(line, highlight=False, soft_wrap=not console.is_terminal)
        simulated = config.engine.kind == "sim"
        with progress_bar(record, num_requests, simulated=simulated, enabled=config.progress, console=console):
            yield

    def tell(self, text: str) -> None:
        self._console.print(text, highlight=False)


def clock_text(record: Record, elapsed_s: float, *, simulated: bool) -> str:
    """The time in the run, and how fast a simulation goes, `elapsed_s` seconds after its start."""
    run_s = record.now_ns * 1e-9
    if not simulated:
        return f"served for {run_s:,.1f} s"
    return f"simulated {run_s:,.0f} s" + (f" at {run_s / elapsed_s:,.0f}x" if elapsed_s else "")
