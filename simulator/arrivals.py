"""The interface of arrivals: whoever serves requests takes out those that are due, and reports those that are over.

Times are int nanoseconds since the start of a run. Arrivals have no clock of their own.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:  # the schema of the configuration, of which --help tells, does without numpy
    import numpy as np
    from numpy.typing import NDArray

NEVER: Final = 2**62 - 1  # later than any time of a run, in ns; a compiled core has objects for larger numbers only


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


class OpenLoop:
    """Arrivals at times fixed beforehand, whatever the engine does.

    Args:
        times_ns: int64[n], ascending; row r arrives at times_ns[r].
    """

    def __init__(self, times_ns: NDArray[np.int64]) -> None:
        self.times_ns = times_ns
        self._times = array("q", times_ns.astype("int64").tobytes())  # in a fifth of the memory of a list
        self._times.append(NEVER)
        self._row = 0
        self.next_ns: int = self._times[0]

    def pop_due(self, now_ns: int) -> list[tuple[int, int]]:
        times = self._times
        row, next_ns = self._row, self.next_ns
        due = []
        while next_ns <= now_ns:
            due.append((next_ns, row))
            row += 1
            next_ns = times[row]
        self._row, self.next_ns = row, next_ns
        return due

    def on_finish(self, row: int, now_ns: int) -> None:
        pass


class Source:
    """Where a replica fetches requests from; as it stands, of one to which they are brought when they arrive.

    Attributes:
        next_ns: no request comes before this time, unless one that runs now ends; NEVER where none does.
    """

    def __init__(self) -> None:
        self.next_ns = NEVER

    def dispatch(self, until_ns: int) -> None:
        """Submit all requests that arrive up to `until_ns`."""
