"""Sorts the rows of a trace file into usable and bad ones, and keeps count of why."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.errors import TraceError

log = logging.getLogger(__name__)

OnBadRow = Literal["skip", "drop", "error"]

MAX_BAD_SHARE = 0.01  # of the rows; "skip" refuses a file with more
_USABLE = 0
_IGNORED = -1  # neither usable nor bad: rows the user did not ask for


@dataclass(frozen=True)
class RowRules:
    """Which rows of a file to keep.

    Attributes:
        limit: usable rows to let through, the earliest ones where they have times; None for all.
        on_bad_row: "skip" counts bad rows and refuses a file with more than `MAX_BAD_SHARE` of them; "drop" counts any
            number of them; "error" raises at the first in the file.
        with_times: whether the file's arrival times are wanted. If not, they are not read, so none of them is bad.
        window: (from, to) in s after the first request, of which the requests are kept; None for all.
    """

    limit: int | None = None
    on_bad_row: OnBadRow = "skip"
    with_times: bool = True
    window: tuple[float, float] | None = None


class RowSieve:
    """Accounts for the rows of one file, chunk by chunk: `start`, any number of checks, `finish`.

    The first reason against a row is the one that counts. Rows after the last one that `limit` lets in are not
    looked at, so counts do not depend on how the file was cut into chunks. `restart` begins a last look at all rows
    that were kept, for checks between rows.

    Args:
        path: for messages.
        rules: which rows to keep.
        unit: what a row is called in messages.
        expected: reasons that are no damage, as a format has rows that are no requests. They do not count towards
            `MAX_BAD_SHARE`.
    """

    def __init__(self, path: str, rules: RowRules, unit: str = "line", expected: Collection[str] = ()) -> None:
        self.path = path
        self.rules = rules
        self.unit = unit
        self.bad_rows: dict[str, int] = {}
        self._expected = expected
        self._remaining = rules.limit
        self._reasons: list[str] = []  # of code 1, 2, ...
        self._first_bad: tuple[int, str] | None = None  # line and reason, expected ones left out

    @property
    def is_full(self) -> bool:
        """Whether `limit` has been reached."""
        return self._remaining == 0

    def start(self, lines: npt.NDArray[np.int64], malformed: Sequence[tuple[int, str]] = ()) -> None:
        """Begins a chunk. `lines`: number in the file of each row, ascending; `malformed`: unreadable lines, why."""
        self._lines = lines
        self._malformed = malformed
        self._codes = np.zeros(len(lines), dtype=np.int32)

    def let_all_through(self) -> None:
        """The limit does not count: which rows it keeps is known once all are in order of time."""
        self._remaining = None

    def restart(self, lines: npt.NDArray[np.int64]) -> None:
        """Begins a last look at rows that were kept, in any order; the limit does not count again."""
        self.let_all_through()
        self.start(lines)

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
        looked_at = np.ones(len(self._lines), dtype=bool)
        malformed = list(self._malformed)
        if self._remaining is not None:
            self._remaining -= len(kept)
            if self.is_full:
                last_line = self._lines[kept[-1]]
                looked_at = self._lines <= last_line
                malformed = [item for item in malformed if item[0] <= last_line]
        bad = np.flatnonzero((self._codes > 0) & looked_at)
        self._note_first(bad, malformed)
        for code, count in zip(*np.unique(self._codes[bad], return_counts=True), strict=True):
            self._count(self._reasons[code - 1], int(count))
        for _, reason in malformed:
            self._count(reason, 1)
        return kept

    def require_usable(self, num_rows: int) -> None:
        """Reports rows left out.

        Raises:
            TraceError: no row of the file was usable, or more were left out than the rules allow.
        """
        reasons = ", ".join(f"{count} x {reason}" for reason, count in self.bad_rows.items())
        if num_rows == 0:
            raise TraceError(f"{self.path}: no usable row ({reasons or 'it holds none'})")
        damaged = sum(count for reason, count in self.bad_rows.items() if reason not in self._expected)
        total = num_rows + sum(self.bad_rows.values())
        if self.rules.on_bad_row == "skip" and damaged > MAX_BAD_SHARE * total:
            assert self._first_bad is not None
            line, reason = self._first_bad
            raise TraceError(
                f"{self.path}: {damaged} of {total} rows cannot be used, more than {MAX_BAD_SHARE:.0%}; the first is "
                f"{self.unit} {line}: {reason} (trace.on_bad_row=drop leaves out any number)"
            )
        if reasons:
            log.warning("%s: left out %s", self.path, reasons)

    def _code(self, reason: str) -> int:
        if reason not in self._reasons:
            self._reasons.append(reason)
        return self._reasons.index(reason) + 1

    def _count(self, reason: str, count: int) -> None:
        self.bad_rows[reason] = self.bad_rows.get(reason, 0) + count

    def _note_first(self, bad: npt.NDArray[np.int64], malformed: Sequence[tuple[int, str]]) -> None:
        """Remembers the first bad row; raises TraceError for it when the rules say so."""
        rows = [(int(self._lines[row]), self._reasons[self._codes[row] - 1]) for row in self._firsts(bad)]
        rows += malformed[:1]
        if rows and self.rules.on_bad_row == "error":
            line, reason = min(rows)
            raise TraceError(f"{self.path}, {self.unit} {line}: {reason} (trace.on_bad_row=skip leaves such rows out)")
        rows = [(line, reason) for line, reason in [*rows, *malformed] if reason not in self._expected]
        rows += [self._first_bad] if self._first_bad else []
        self._first_bad = min(rows, default=None)

    def _firsts(self, bad: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Of the bad rows, the first of each reason."""
        in_file_order = bad[np.argsort(self._lines[bad], kind="stable")]
        _, first = np.unique(self._codes[in_file_order], return_index=True)
        return in_file_order[first]
