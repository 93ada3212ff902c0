"""Collects the usable rows of a trace file, chunk by chunk, into columns, and makes a Trace of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from harness.workload.rows import value_checks
from harness.workload.rows.order import arrange, within_window
from harness.workload.rows.sieve import RowSieve
from harness.workload.trace import Trace, renumbered, trace_table

if TYPE_CHECKING:
    import pyarrow as pa

    from harness.workload.rows.csv_file import CsvChunk

Columns = dict[str, npt.NDArray[Any]]
NumberCheck = Callable[[value_checks.Numbers, str, RowSieve], npt.NDArray[Any]]
TextCheck = Callable[["pa.ChunkedArray", str, RowSieve], npt.NDArray[Any]]


class _Chunk(Protocol):
    @property
    def lines(self) -> npt.NDArray[np.int64]: ...

    @property
    def malformed(self) -> list[tuple[int, str]]: ...


ChunkT = TypeVar("ChunkT", bound=_Chunk)


@dataclass(frozen=True)
class CsvColumn:
    """A column of a CSV format: its `name` in the file, its `target` in Trace.table, and how its text is read."""

    name: str
    target: str
    parse: TextCheck


def number_column(name: str, target: str, check: NumberCheck) -> CsvColumn:
    """A CSV column of numbers that must pass a check."""

    from harness.workload.rows.text_checks import numbers_from_text  # imported late, as JSON lines do without pyarrow

    def parse(texts: pa.ChunkedArray, name: str, sieve: RowSieve) -> npt.NDArray[Any]:
        return check(numbers_from_text(texts), name, sieve)

    return CsvColumn(name, target, parse)


def collect(chunks: Iterable[ChunkT], parse: Callable[[ChunkT, RowSieve], Columns], sieve: RowSieve) -> Columns:
    """The usable rows of all chunks by target name, and `line`, the number of each row in the file.

    Stops reading when the sieve has reached its limit, which does not count for rows with a time.

    Args:
        parse: checks the rows of a chunk and returns its columns, arrays of the chunk's length.

    Raises:
        TraceError: there is no row, or a row is bad and the rules say to raise.
    """
    parts: list[Columns] = []
    for chunk in chunks:
        sieve.start(chunk.lines, chunk.malformed)
        columns = parse(chunk, sieve)
        if "arrival_time" in columns:
            sieve.let_all_through()
        kept = sieve.finish()
        parts.append({target: values[kept] for target, values in (columns | {"line": chunk.lines}).items()})
        if sieve.is_full:
            break
    if not parts:
        sieve.require_usable(0)
    return {target: np.concatenate([part[target] for part in parts]) for target in parts[0]}


def collect_csv(path: str, columns: Sequence[CsvColumn], sieve: RowSieve, delimiter: str = ",") -> Columns:
    """The usable rows of a CSV file. Its columns are checked in the order given. Raises like `collect`."""
    from harness.workload.rows.csv_file import csv_chunks  # imported late, too

    columns = [column for column in columns if sieve.rules.with_times or column.target != "arrival_time"]
    chunks = csv_chunks(path, [column.name for column in columns], delimiter)
    return collect(chunks, partial(_parse_csv, columns), sieve)


def _parse_csv(columns: Sequence[CsvColumn], chunk: CsvChunk, sieve: RowSieve) -> Columns:
    return {column.target: column.parse(chunk.columns[column.name], column.name, sieve) for column in columns}


def build_trace(
    name: str,
    columns: Mapping[str, Any],
    sieve: RowSieve,
    *,
    ticks_per_second: int = 1,
    hash_block_size: int | None = None,
    notes: tuple[str, ...] = (),
) -> Trace:
    """A Trace of the rows that a sieve kept, in order of arrival, up to its limit; columns of `collect` are checked row
    against row.

    Raises:
        TraceError: no row is usable, more were left out than the rules allow, or a row is bad and the rules say raise.
    """
    columns = dict(columns)
    lines = columns.pop("line", None)
    if lines is not None:
        columns, arranged = arrange(columns, lines, sieve, ticks_per_second)
        columns, cut = within_window(columns, sieve, ticks_per_second)
        arranged = (*arranged, *cut)
        columns = {name: values[: sieve.rules.limit] for name, values in columns.items()}
        if "waits_for" in columns:
            columns["waits_for"] = renumbered(columns["waits_for"], columns["request_id"].tolist())
        notes = (*notes, *arranged)
        sieve.require_usable(len(columns["num_prompt_tokens"]))
    return Trace(
        name=name,
        rows=trace_table(columns, ticks_per_second=ticks_per_second),
        source=sieve.path,
        hash_block_size=hash_block_size,
        bad_rows=sieve.bad_rows,
        notes=notes,
    )
