"""The progress bar of a run: requests done, time in the run, how fast it goes, and the time left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from harness.runs.record import Record

_REFRESH_S = 0.2


@contextmanager
def progress_bar(record: Record, total: int, *, simulated: bool, enabled: bool, console: Console) -> Iterator[None]:
    """Show how far `record` is, from a thread that only reads its counters, so that the run does no work for it."""
    if not enabled or not console.is_terminal:
        yield
        return
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


def clock_text(record: Record, elapsed_s: float, *, simulated: bool) -> str:
    """The time in the run, and how fast a simulation goes, `elapsed_s` seconds after its start."""
    run_s = record.now_ns * 1e-9
    if not simulated:
        return f"served for {run_s:,.1f} s"
    return f"simulated {run_s:,.0f} s" + (f" at {run_s / elapsed_s:,.0f}x" if elapsed_s else "")
