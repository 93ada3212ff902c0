"""Sorts the rows of a trace file into usable and bad ones, and keeps count of why."""

import logging
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.errors import TraceError

log = logging.getLogger(__name__)

OnBadRow = Literal["skip", "error"]

_USABLE = 0
_IGNORED = -1  # neither usable nor bad: rows the user did not ask for


class RowSieve:
    """Accounts for the rows of one file, chunk by chunk: `start`, any number of checks, `finish`.

    The first reason against a row is the one that counts. Rows after the last one that `limit` lets in are not
    looked at, so counts do not depend on how the file was cut into chunks.

    Args:
        path: for messages.
        limit: usable rows to let through; None for all.
        on_bad_row: "skip" counts bad rows; "error" raises at the first in the file.
        unit: what a row is called in messages.
    """

    def __init__(self, path: str, limit: int | None, on_bad_row: OnBadRow, unit: str = "line") -> None:
        self.path = path
        self.unit = unit
        self.bad_rows: dict[str, int] = {}
        self._remaining = limit
        self._raise = on_bad_row == "error"
        self._reasons: list[str] = []  # of code 1, 2, ...

    @property
    def is_full(self) -> bool:
        """Whether `limit` has been reached."""
        return self._remaining == 0

    def start(self, lines: npt.NDArray[np.int64], malformed: Sequence[tuple[int, str]] = ()) -> None:
        """Begins a chunk. `lines`: number in the file of each row, ascending; `malformed`: unreadable lines, why."""
        self._lines = lines
        self._malformed = malformed
        self._codes = np.zeros(len(lines), dtype=np.int32)

    @property
    def usable(self) -> npt.NDArray[np.bool_]:
        """Which rows of the chunk no check has rejected so far."""
        return self._codes == _USABLE

    def reject(self, rows: npt.NDArray[np.bool_], reason: str) -> None:
        """Marks rows (a mask over the chunk) as bad."""
        hit = rows & self.usable
        if hit.any():
            self._codes[hit] = self._code(reason)

    def ignore(self, rows: npt.NDArray[np.bool_]) -> None:
        """Leaves rows out without calling them bad."""
        self._codes[rows & self.usable] = _IGNORED

    def finish(self) -> npt.NDArray[np.int64]:
        """Ends the chunk and returns the indices of its rows to keep.

        Raises:
            TraceError: a row is bad and the sieve was told to raise.
        """
        kept = np.flatnonzero(self.usable)[: self._remaining]
        last_line = self._lines[-1] if len(self._lines) else 0
        if self._remaining is not None:
            self._remaining -= len(kept)
            if self.is_full:
                last_line = self._lines[kept[-1]]
        malformed = [item for item in self._malformed if not self.is_full or item[0] <= last_line]
        bad = np.flatnonzero((self._codes > 0) & (self._lines <= last_line))
        if self._raise and (malformed or len(bad)):
            self._raise_first(bad, malformed)
        for code, count in zip(*np.unique(self._codes[bad], return_counts=True), strict=True):
            self._count(self._reasons[code - 1], int(count))
        for _, reason in malformed:
            self._count(reason, 1)
        return kept

    def require_usable(self, num_rows: int) -> None:
        """Reports rows left out; raises TraceError when no row of the file was usable."""
        reasons = ", ".join(f"{count} x {reason}" for reason, count in self.bad_rows.items())
        if num_rows == 0:
            raise TraceError(f"{self.path}: no usable row ({reasons or 'it holds none'})")
        if reasons:
            log.warning("%s: left out %s", self.path, reasons)

    def _code(self, reason: str) -> int:
        if reason not in self._reasons:
            self._reasons.append(reason)
        return self._reasons.index(reason) + 1

    def _count(self, reason: str, count: int) -> None:
        self.bad_rows[reason] = self.bad_rows.get(reason, 0) + count

    def _raise_first(self, bad: npt.NDArray[np.int64], malformed: Sequence[tuple[int, str]]) -> None:
        firsts = list(malformed[:1])
        if len(bad):
            firsts.append((int(self._lines[bad[0]]), self._reasons[self._codes[bad[0]] - 1]))
        line, reason = min(firsts)
        raise TraceError(f"{self.path}, {self.unit} {line}: {reason} (trace.on_bad_row=skip leaves such rows out)")
