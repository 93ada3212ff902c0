"""Opens trace files, and reads JSON-lines files in batches."""

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from json.scanner import make_scanner
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from engine.documents import BAD_FILE, DocumentError, check_regular, reason_of, unzipped
from harness.errors import TraceError

_HEAD_BYTES = 1 << 16
_OTHER_FILES = {  # by their first bytes
    b"PK\x03\x04": "a zip archive", b"\x28\xb5\x2f\xfd": "compressed by zstd", b"\xfd7zXZ\x00": "compressed by xz",
    b"BZh": "compressed by bzip2", b"PAR1": "a Parquet file",
}  # fmt: skip
_BATCH_LINES, _FIRST_LINES = 4096, 16
_SCAN: Callable[[str, int], tuple[Any, int]] = make_scanner(cast(Any, json.JSONDecoder()))
_BLANKS = " \t\r\n"
LINE_BYTES = 1 << 26

Proposal = Callable[[Collection[str], Collection[str]], str]  # of the column names found and wanted


def no_proposal(found: Collection[str], wanted: Collection[str]) -> str:
    """Nothing more to say about a file without the wanted columns."""
    return ""


@dataclass(frozen=True)
class JsonBatch:
    """Consecutive lines of a JSON-lines file.

    Attributes:
        records: the decoded objects.
        lines: int64[n], number of each object's line, counted from 1.
        malformed: number and reason of each line that holds no object.
    """

    records: list[dict[str, Any]]
    lines: npt.NDArray[np.int64]
    malformed: list[tuple[int, str]]

    def column(self, key: str) -> list[Any]:
        """The values of one key, None where an object lacks it."""
        return [record.get(key) for record in self.records]


@contextmanager
def open_trace(path: str) -> Iterator[BinaryIO]:
    """Opens a regular file for reading, unpacked where gzip has compressed it.

    Raises:
        TraceError: it cannot be opened or read.
    """
    try:
        check_regular(Path(path))
        with unzipped(path) as file:
            yield file
    except BAD_FILE as error:
        raise TraceError(f"{path}: cannot be read: {reason_of(error)}") from None
    except DocumentError as error:
        raise TraceError(f"{path!r}: {error}" if "\0" in path else f"{path}: {error}") from None


def file_head(path: str) -> bytes:
    """The start of a file, for recognising its format. Raises TraceError for an empty file."""
    with open_trace(path) as file:
        start = file.read(_HEAD_BYTES)
    if not start.strip():
        raise TraceError(f"{path}: the file is empty")
    for mark, what in _OTHER_FILES.items():
        if start.startswith(mark):
            raise TraceError(f"{path}: is {what}, which is not read; unpack or convert it first")
    return start


def json_batches(path: str, num_lines: int = _BATCH_LINES) -> Iterator[JsonBatch]:
    """Yields the objects of a JSON-lines file, one per line, of so many lines at a time. Blank lines are skipped."""
    with open_trace(path) as file:
        numbered = enumerate(iter(partial(file.readline, LINE_BYTES), b""), 1)
        while texts := list(islice(numbered, num_lines)):
            for line, text in texts:
                if len(text) == LINE_BYTES:
                    raise TraceError(f"{path}, line {line}: longer than {LINE_BYTES} bytes")
            records = {line: _decode(text) for line, text in texts if not text.isspace()}
            lines = [line for line, record in records.items() if record is not None]
            yield JsonBatch(
                records=[record for record in records.values() if record is not None],
                lines=np.array(lines, dtype=np.int64),
                malformed=[(line, "the line is not a JSON object") for line in records if records[line] is None],
            )


def first_record(
    path: str,
    wanted: tuple[str, ...],
    what: str,
    proposal: Proposal = no_proposal,
) -> dict[str, Any]:
    """The first object of a JSON-lines file, which must have the wanted keys; raises TraceError otherwise, with the
    `proposal` of the names found and wanted."""
    file_head(path)
    record = next((batch.records[0] for batch in json_batches(path, _FIRST_LINES) if batch.records), None)
    if record is None or not set(wanted) <= set(record):
        proposed = proposal(record, wanted) if record else ""
        keys = f" with {', '.join(wanted)}" if wanted else ""
        raise TraceError(f"{path}: not {what}: each line must be a JSON object{keys}{proposed}")
    return record


def _decode(text: bytes) -> dict[str, Any] | None:
    if text.startswith(b"{"):
        try:
            record, end = _SCAN(whole := text.decode(), 0)
        except (ValueError, StopIteration, RecursionError):
            pass  # perhaps in another encoding
        else:
            if not whole[end:].strip(_BLANKS):
                return cast(dict[str, Any], record)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
