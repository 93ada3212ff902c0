"""Cuts CSV files into chunks of text columns, with the line number of every row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from harness.config.schema.traffic.trace_files import Delimiter
from harness.errors import TraceError
from harness.workload.rows.trace_files import LINE_BYTES, Proposal, file_head, no_proposal, open_trace

DELIMITERS: dict[Delimiter, str] = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class CsvChunk:
    """Consecutive rows of a CSV file.

    Attributes:
        columns: text by name, each of length n, without blanks and quotes around it.
        lines: int64[n], number of each row's line, counted from 1.
        malformed: number and reason of each line that is no row.
    """

    columns: dict[str, pa.ChunkedArray]
    lines: npt.NDArray[np.int64]
    malformed: list[tuple[int, str]]


def csv_header(path: str, delimiter: str = ",") -> tuple[str, ...]:
    """The column names of a CSV file, without blanks and quotes around them."""
    line = file_head(path).split(b"\n", 1)[0]
    names = line.decode("utf-8-sig", errors="replace").split(delimiter)
    return tuple(name.strip().strip('"') for name in names)


def require_columns(
    path: str, wanted: Sequence[str], what: str, delimiter: str = ",", proposal: Proposal = no_proposal
) -> tuple[str, ...]:
    """The header of a CSV file that must have these columns. `proposal` of the names found and wanted ends the message
    where they are not there.

    Raises:
        TraceError: it lacks some, or has one twice.
    """
    header = csv_header(path, delimiter)
    if not set(wanted) <= set(header):
        found = repr(delimiter.join(header))
        shown = found if len(found) <= 100 else found[:100] + "..."
        names, proposed = ", ".join(wanted), proposal(header, wanted)
        raise TraceError(f"{path}: not {what}: its first line must name {names}; it reads {shown}{proposed}")
    for name in header:
        if name and header.count(name) > 1:
            raise TraceError(f"{path}: two columns are named {name!r}")
    return header


def csv_chunks(path: str, wanted: Sequence[str], delimiter: str = ",") -> Iterator[CsvChunk]:
    """Yields the wanted columns of a CSV file with a header line. Blank lines are skipped."""
    header = csv_header(path, delimiter)
    line = 2
    with open_trace(path) as file:
        file.readline()
        rest = b""
        while block := file.read(_BLOCK_BYTES):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                texts = whole.split(b"\n")
                yield _csv_chunk(texts, line, header, wanted, delimiter)
                line += len(texts)
            if len(rest) > LINE_BYTES:
                raise TraceError(f"{path}, line {line}: longer than {LINE_BYTES} bytes")
        if rest:
            yield _csv_chunk([rest], line, header, wanted, delimiter)


def _csv_chunk(
    texts: list[bytes], first_line: int, header: tuple[str, ...], wanted: Sequence[str], delimiter: str
) -> CsvChunk:
    numbers = [line for line, text in enumerate(texts, first_line) if text and not text.isspace()]
    if len(numbers) < len(texts):
        texts = [texts[line - first_line] for line in numbers]
    malformed: list[int] = []  # positions in `texts`

    def note(row: Any) -> str:
        malformed.append(row.number - 1)
        return "skip"

    # Decoded with replacement and encoded again: a damaged byte spoils its row, not the file. Quotes are not
    # interpreted, so that an unpaired quote cannot swallow the lines after it; neither are lone carriage returns.
    data = b"\n".join(texts).replace(b"\r", b" ").decode("utf-8", errors="replace").encode()
    if not data:
        return CsvChunk({name: pa.chunked_array([[]], pa.string()) for name in wanted}, np.empty(0, np.int64), [])
    table = pyarrow.csv.read_csv(
        BytesIO(data),
        read_options=pyarrow.csv.ReadOptions(
            use_threads=False,  # with threads the rows would have no numbers
            column_names=[f"column {i}" for i in range(len(header))],
            block_size=len(data),
        ),
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, quote_char=False, invalid_row_handler=note),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={f"column {i}": pa.string() for i in range(len(header))},
            include_columns=[f"column {header.index(name)}" for name in wanted],
        ),
    )
    columns = {name: pc.utf8_trim(table.column(i), characters=' "\t') for i, name in enumerate(wanted)}
    lines = np.delete(np.array(numbers, dtype=np.int64), malformed)
    reason = f"the line does not have {len(header)} columns"
    return CsvChunk(columns, lines, [(numbers[position], reason) for position in malformed])
