"""Reads the files of measured runs, and checks the numbers in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine import documents
from engine.documents import DocumentError, errors_as, parse_json
from harness.errors import MeasuredRunError
from harness.results.tables import Floats
from simulator.quantities import MAX_TOKENS

MAX_NUMBER = 1e15  # of a length or a time in any clock, in s; the clocks of today count at most 1e10 s


def read_text(path: Path) -> str:
    """The text of a file; raises MeasuredRunError if the file is missing or empty."""
    with errors_as(MeasuredRunError, path):
        text = documents.read_text(path)
    if not text.strip():
        raise MeasuredRunError(f"{path}: the file is empty")
    return text


def read_json(path: Path) -> Any:
    """The JSON document in a file, whose numbers may be of any size; raises MeasuredRunError."""
    with errors_as(MeasuredRunError, path):
        return parse_json(read_text(path), numbers="any")


def read_json_lines(path: Path) -> list[Mapping[str, Any]]:
    """The objects of a JSON-lines file, one a line; raises MeasuredRunError."""
    records: list[Mapping[str, Any]] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line, numbers="any")
        except DocumentError:
            record = None
        if not isinstance(record, dict):
            raise MeasuredRunError(f"{path}: line {number} is not a JSON object")
        records.append(record)
    return records


def number_columns(path: Path, records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Floats]:
    """The named fields of all records as float64[n].

    Raises:
        MeasuredRunError: there is no record, or a record has no finite number in a field, as a failed request has.
    """
    if not records:
        raise MeasuredRunError(f"{path}: holds no request")
    absent = [name for name in names if not any(name in record for record in records)]
    if absent:
        raise MeasuredRunError(f"{path}: no field {', '.join(absent)}; there are {', '.join(records[0]) or 'none'}")
    columns = {name: np.array([as_number(record.get(name)) for record in records]) for name in names}
    bad = np.any([~np.isfinite(values) for values in columns.values()], axis=0)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        lacking = [name for name, values in columns.items() if not np.isfinite(values[first])]
        raise MeasuredRunError(
            f"{path}: {bad.sum()} of {len(records)} requests failed or are incomplete; "
            f"request {first + 1} has no {', '.join(lacking)}"
        )
    return columns


def check_lengths(path: Path, columns: Mapping[str, Floats], names: Sequence[str]) -> None:
    """Raises MeasuredRunError where a number of tokens is not a whole number from 1 to `MAX_TOKENS`."""
    for name in names:
        values = columns[name]
        wrong = np.flatnonzero(~((values >= 1) & (values <= MAX_TOKENS) & (values == np.floor(values))))
        if len(wrong):
            raise MeasuredRunError(
                f"{path}: {name} of request {wrong[0] + 1} is {values[wrong[0]]:.12g}, no whole number from 1 to "
                f"{MAX_TOKENS}; a request of 0 tokens failed, or was not recorded"
            )


def as_number(value: Any) -> float:
    """The value as a float; NaN where it is no number of a size that a time or a length can have."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) <= MAX_NUMBER else np.nan
