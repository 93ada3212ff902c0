"""Which column of a file of the user's is which of the trace table, and in what unit its times are."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from harness.config.schema.traffic.reader import nearest
from harness.config.schema.traffic.trace_files import TimeUnit
from harness.errors import TraceError
from harness.workload.rows import text_checks, value_checks
from harness.workload.rows.common_names import likely_columns
from harness.workload.rows.sieve import RowSieve
from harness.workload.rows.tabular import CsvColumn, NumberCheck, TextCheck, number_column

_TICKS: dict[TimeUnit, int] = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9, "date": 10**9}
_SHOWN = 12  # columns of a file that a message lists


@dataclass(frozen=True)
class Layout:
    """Columns of a file with other names than those of the trace table.

    Attributes:
        columns: the trace table's column by the name in the file; empty for a file with the trace table's own names.
        time_unit: of the arrival times: seconds to nanoseconds, or dates with times (ISO 8601).
        hash_block_size: tokens per hash id, where no column says it.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: TimeUnit = "s"
    hash_block_size: int | None = None

    @property
    def ticks_per_second(self) -> int:
        """Of the arrival times as they are read."""
        return _TICKS[self.time_unit]

    def names(self, path: str, found: Collection[str], known: Sequence[str]) -> dict[str, str]:
        """The name in the file of each of the `known` columns that it has. Names that `columns` gives are read in place
        of the trace table's own; then other columns of the file are left out.

        Raises:
            TraceError: a column that `columns` names is missing, two give the same, or a file without `columns` has one
                that is not known.
        """
        for name in self.columns:
            if name not in found:
                raise TraceError(f"{path}: trace.columns names {name!r}, which it lacks; it has {_listed(found)}")
        names: dict[str, str] = {}
        for name in found:
            ours = self.columns.get(name, name)
            if ours in names:
                raise TraceError(f"{path}: columns {names[ours]!r} and {name!r} both give {ours}")
            if ours in known:
                names[ours] = name
            elif not self.columns and not is_index(name):
                raise TraceError(
                    f"{path}: unknown column {name!r}{nearest(name, known)} (allowed: {', '.join(known)}; "
                    "trace.columns={<column>: <one of these>} reads a file with other names)"
                )
        return names

    def proposal(self, found: Collection[str], wanted: Collection[str]) -> str:
        """`; if ... set trace.columns=...` for a file without the wanted columns whose names tell which they are; else
        empty."""
        guesses = {} if self.columns else likely_columns(found)
        if not set(wanted) <= set(guesses.values()):
            return ""
        given = ", ".join(f"{name}: {ours}" for name, ours in guesses.items() if name != ours)
        return f"; if these are they, set 'trace.columns={{{given}}}'"

    def in_file(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The names in the file of wanted columns."""
        given = {ours: name for name, ours in self.columns.items()}
        return tuple(given.get(name, name) for name in wanted)

    def check(self, name: str, check: NumberCheck) -> NumberCheck:
        """The check of a column of numbers."""
        is_fine = name == "arrival_time" and self.time_unit == "us"
        return partial(value_checks.times, most=value_checks.MAX_EXACT) if is_fine else check

    def csv_column(self, name: str, ours: str, check: NumberCheck) -> CsvColumn:
        """How a column of a CSV file is read."""
        if times := self.times_of_text(ours):
            return CsvColumn(name, ours, times)
        column = number_column(name, ours, self.check(ours, check))
        return CsvColumn(name, ours, partial(_parse_times, column)) if ours == "arrival_time" else column

    def times_of_text(self, ours: str) -> TextCheck | None:
        """How the texts of a column are read, where they are times that no float64 holds: dates and nanoseconds."""
        if ours != "arrival_time":
            return None
        return {"date": text_checks.timestamps, "ns": text_checks.nanoseconds}.get(self.time_unit)


def reject_dates(texts: pa.ChunkedArray, name: str, sieve: RowSieve) -> None:
    """Rejects rows whose time should be a number and is a date, with what reads it."""
    sieve.reject(text_checks.are_dates(texts), f"{name} is a date, which trace.time_unit=date reads")


def _parse_times(column: CsvColumn, texts: pa.ChunkedArray, name: str, sieve: RowSieve) -> npt.NDArray[Any]:
    reject_dates(texts, name, sieve)
    return column.parse(texts, name, sieve)


def is_index(name: str) -> bool:
    """Whether a column has the name of a row number that pandas wrote."""
    return name in ("", "index") or name.startswith("Unnamed: ")


def texts_from_json(values: Sequence[object]) -> pa.ChunkedArray:
    """JSON text as it is, whole numbers as text, and an empty text where there is none, for `times_of_text`."""
    texts = ["" if value is None else value if isinstance(value, str) else _whole(value) for value in values]
    # JSON can hold halves of surrogate pairs, which Arrow refuses: each becomes a question mark
    texts = [text if text.isascii() else text.encode(errors="replace").decode() for text in texts]
    return pa.chunked_array([pa.array(texts, pa.string())])


def _whole(value: object) -> str:
    """A whole number as text; `?` for anything else."""
    if type(value) is float and value.is_integer() and abs(value) <= value_checks.MAX_EXACT:
        value = int(value)
    return str(value) if type(value) is int and abs(value) < 1 << 63 else "?"


def _listed(names: Collection[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(list(names)[:_SHOWN])}{more}"
