"""The interface of arrivals: whoever serves requests takes out those that are due, and reports those that are over.

Times are int nanoseconds since the start of a run. Arrivals have no clock of their own.
"""

from __future__ import annotations

from typing import Protocol

NEVER = 2**63 - 1  # later than any time of a run, in ns


class Arrivals(Protocol):
    """Requests in order of arrival; a row of the trace names each of them once.

    Attributes:
        next_ns: time of the earliest arrival that is known, NEVER when nothing comes unless a request in service ends.
    """

    next_ns: int

    def pop_due(self, now_ns: int) -> list[tuple[int, int]]:
        """Takes out the arrivals up to and including `now_ns`: pairs of intended arrival and row, in order."""

    def on_finish(self, row: int, now_ns: int) -> None:
        """The request of `row` is over: it finished, was refused or was aborted; once per row, times ascending."""
