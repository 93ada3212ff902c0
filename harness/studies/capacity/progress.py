"""How a search for a capacity shows itself in a terminal: the answer so far, which gets narrower, and the time left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from harness.results.summary import number
from harness.studies.capacity.fewest import bounds
from harness.studies.capacity.keys import counts_servers, unit_of
from harness.studies.capacity.load_search import so_far
from harness.studies.capacity.probe import Probe


class SearchBar:
    """One line, which `tell` changes after each round of probes."""

    def __init__(self, progress: Progress, key: str, title: str) -> None:
        self._progress, self._key, self._title = progress, key, title
        self._task = progress.add_task("", total=None, answer="", ends=None)
        self._began = time.monotonic()
        self.is_shown = not progress.disable  # otherwise nobody need reckon what is to be told

    def tell(self, probes: Sequence[Probe], num_new: int, num_left: int, room: float) -> None:
        """After a round of `num_new` probes; the requests that are left will take as long each as those of the
        round."""
        now, new = time.monotonic(), sum(probe.num_requests for probe in probes[-num_new:])
        left_s, self._began = num_left * (now - self._began) / new, now
        num_done = sum(probe.num_requests for probe in probes)
        self._progress.update(
            self._task,
            completed=num_done,
            total=num_done + num_left,
            answer=f"{self._title}so far {answer_text(probes, self._key, room)}",
            ends=now + left_s,
            refresh=True,
        )


@contextmanager
def search_bar(console: Console, shown: bool, key: str, title: str = "") -> Iterator[SearchBar]:
    """The line of a search for the value of `key`, while the block runs."""
    columns = (BarColumn(bar_width=16), TextColumn("{task.fields[answer]}"), TimeElapsedColumn(), _TimeLeft())
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        yield SearchBar(progress, key, title)


class _TimeLeft(ProgressColumn):
    def render(self, task: Task) -> Text:
        ends = task.fields["ends"]
        if ends is None:
            return Text("")
        left = max(ends - time.monotonic(), 1.0)
        return Text(f"about {left:.0f} s left" if left < 100 else f"about {left / 60:.0f} min left")


def answer_text(probes: Sequence[Probe], key: str, room: float) -> str:
    """Such as `18 to 22 requests/s`, also where one side is known only from how full the system was."""
    unit = unit_of(key)
    if counts_servers(key):
        low, high = bounds(probes, room)
        if high is None:
            return f"{max(low, round(probes[-1].guess))} {unit} or more"
        return f"{low} to {high} {unit}" if low < high else f"{high} {unit}"
    found = so_far(probes, room).estimate
    if found is not None:
        return f"{number(found.low)} to {number(found.high)} {unit}"
    held = [probe.load for probe in probes if probe.holds(room)]
    failed = [probe.load for probe in probes if not probe.holds(room)]
    most = min([*failed, probes[-1].guess or probes[-1].load]) if failed else probes[-1].guess
    if held:
        return f"{number(max(held))} {unit} or more" + (f", full at {number(most)}" if most else "")
    return f"below {number(most)} {unit}"
