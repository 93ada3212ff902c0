"""A sweep in the terminal: one line per job that ended, and below them, in a terminal, a bar with the time left.

Jobs run in this process or in others, whose lines would run into one another and into the bar. Each job therefore
appends what it did to a file that the environment names, and this process alone prints.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from harness.results.measures.unserved import unserved_text
from harness.results.stored.files import CAPACITY, SUMMARY, read_summary
from harness.results.summary import number

_FILE = "TWINSERVE_JOBS"
_REFRESH_S = 0.2
_MAX_NAME = 34


@dataclass(frozen=True)
class JobLine:
    """What is said about a job that ended.

    Attributes:
        output: what the job printed, to be shown above its line.
    """

    name: str
    status: Literal["done", "skipped", "failed"]
    text: str
    seconds: float = 0.0
    output: str = ""


def headline(folder: Path) -> str:
    """The headline numbers of what a job left in its folder; empty for a task without any."""
    if (folder / CAPACITY).exists():
        from harness.studies.capacity.table import capacity_text  # imported late, as a run does without it

        return capacity_text(folder)
    return result_text(read_summary(folder)) if (folder / SUMMARY).exists() else ""


def result_text(summary: Mapping[str, Any]) -> str:
    """The headline numbers of a run; empty for the results of other tasks."""
    if summary.get("output_throughput") is None:
        return ""
    throughput = f"{number(summary['output_throughput']):>6} tok/s"
    if unserved := unserved_text(summary):
        throughput += f"  NOT ALL SERVED ({unserved})"
    if summary.get("verdict") == "overloaded":  # latencies then say how long the run was
        return f"{throughput}  overloaded"
    tail = next((key for key in ("p99_ttft_ms", "p95_ttft_ms", "p90_ttft_ms") if key in summary), "median_ttft_ms")
    name = tail.partition("_")[0].replace("median", "p50")
    slo_met = summary.get("slo_met")
    met = "" if slo_met is None else "  SLO met" if slo_met else "  SLO missed"
    return f"{throughput}  TTFT {name} {number(summary.get(tail))} ms{met}"


def tell(line: JobLine) -> None:
    """Hand over the line of a job that ended. Where no process listens, such as on another machine, it is printed."""
    try:
        handle = os.open(os.environ.get(_FILE, ""), os.O_WRONLY | os.O_APPEND)
    except OSError:
        stream = sys.stderr if line.status == "failed" else sys.stdout
        print(f"{line.output}{line.name}: {_described(line)}", file=stream, flush=True)
        return
    with os.fdopen(handle, "ab") as file:
        file.write(json.dumps(asdict(line)).encode() + b"\n")


@contextmanager
def shown(total: int | None, name_width: int, *, with_bar: bool) -> Iterator[None]:
    """Print the lines of the jobs that end inside the block, `total` of them if that is known."""
    descriptor, name = tempfile.mkstemp(prefix="twinserve-jobs-")
    os.close(descriptor)
    os.environ[_FILE] = name
    printer = _Printer(Path(name), total, min(name_width, _MAX_NAME), with_bar=with_bar)
    try:
        with printer.running():
            yield
    finally:
        os.environ.pop(_FILE, None)
        os.unlink(name)


class _Printer:
    def __init__(self, path: Path, total: int | None, name_width: int, *, with_bar: bool) -> None:
        self._path = path
        self._total = total
        self._name_width = name_width
        self._read = 0
        self._done = 0
        self._run = 0  # jobs that were neither skipped nor failed before they began
        self._started = self._last = time.monotonic()
        self._console = Console(file=sys.stdout)
        self._errors = Console(file=sys.stderr)
        bar = (BarColumn(bar_width=24), TextColumn("{task.description}"))
        self._progress = Progress(
            *bar, console=self._console, auto_refresh=False, transient=True, redirect_stderr=sys.stderr.isatty()
        )
        self._task = self._progress.add_task("", total=total)
        self._has_bar = with_bar and self._console.is_terminal

    @contextmanager
    def running(self) -> Iterator[None]:
        is_over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(is_over,), name="jobs", daemon=True)
        if self._has_bar:
            self._progress.start()
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()
            if self._has_bar:
                self._progress.stop()

    def _watch(self, is_over: threading.Event) -> None:
        while not is_over.wait(_REFRESH_S):
            self._show()
        self._show()

    def _show(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole + newline)
        for text in whole.splitlines():
            self._print(JobLine(**json.loads(text)))
        if self._has_bar:
            self._progress.update(self._task, completed=self._done, description=self._progress_text())
            self._progress.refresh()

    def _print(self, line: JobLine) -> None:
        self._done += 1
        self._run += line.status == "done"
        self._last = time.monotonic()
        number_width = len(str(self._total or ""))
        place = f"{self._done:>{number_width}}/{self._total}" if self._total else str(self._done)
        console = self._errors if line.status == "failed" else self._console
        if line.output:
            console.print(line.output, end="", markup=False, highlight=False, soft_wrap=True)
        name = line.name if not self._has_bar else _shortened(line.name)
        text = f"{place}  {name:<{self._name_width}}  {_described(line)}"
        whole = line.status == "failed" or not self._console.is_terminal
        if whole:
            console.print(Text(text), soft_wrap=True)
        else:
            console.print(Text(text), no_wrap=True, overflow="ellipsis")

    def _progress_text(self) -> str:
        now = time.monotonic()
        total = self._total
        texts = [f"{self._done} of {total} jobs" if total else f"{self._done} jobs", _clock(now - self._started)]
        if total and self._run:
            each = (self._last - self._started) / self._run
            texts.append(f"{_clock(max(each * (total - self._done) - (now - self._last), 0.0))} left")
        return "  ".join(texts)


def _described(line: JobLine) -> str:
    if line.status == "failed":
        return f"failed: {line.text}"
    texts = [line.text] if line.text else []
    return "  ".join([*texts, f"{line.seconds:.1f} s" if line.status == "done" else "skipped, done before"])


def _shortened(name: str) -> str:
    """The name of a job in at most `_MAX_NAME` characters; both ends stay, which tell jobs apart."""
    half = (_MAX_NAME - 1) // 2
    return name if len(name) <= _MAX_NAME else f"{name[:half]}…{name[-half:]}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
