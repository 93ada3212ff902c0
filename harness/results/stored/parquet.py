"""Tables as Parquet files, without pandas: a short run and its page must not import it, as pyarrow's converters do.

NaN is stored as a missing value, as pandas stores it. A long table is written in parts, so that no copy of all of it
is made. Columns whose values hardly repeat, such as times, are written without a dictionary, which would take as long
as all else and be given up in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from simulator.table import Categories, Column, Table, objects

_PART_ROWS = 50_000
_SAMPLE = 4096  # rows that tell whether the values of a column repeat
_MOST_NAMES = 127  # that int8 codes can tell


def write_parquet(path: Path, table: Table) -> None:
    """Write `table` to `path`. Columns are numbers, flags, `Categories`, or texts with NaN for what is missing."""
    schema = pa.schema([(name, _type_of(table[name])) for name in table])
    repeating = [name for name in table if _repeats(table[name])]
    with parquet.ParquetWriter(path, schema, use_dictionary=repeating) as writer:
        for start in range(0, max(len(table), 1), _PART_ROWS):
            part = table[start : start + _PART_ROWS]
            arrays = [_array(part[name], schema.field(name).type) for name in part]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _repeats(values: Column | Categories) -> bool:
    if isinstance(values, Categories) or values.dtype == object:
        return True
    return 2 * _num_different(np.ascontiguousarray(values[:_SAMPLE])) <= min(len(values), _SAMPLE)


def _num_different(values: NDArray[Any]) -> int:
    """By their bits, which NaN has, too; `np.unique` would import masked arrays."""
    ordered = np.sort(values.view(f"i{values.itemsize}"))
    return min(len(ordered), 1) + int(np.count_nonzero(ordered[1:] != ordered[:-1]))


def _type_of(values: Column | Categories) -> pa.DataType:
    if isinstance(values, Categories):
        return pa.dictionary(pa.int8(), pa.string())
    if values.dtype == object:
        return pa.string() if any(isinstance(value, str) for value in values) else pa.null()
    return pa.from_numpy_dtype(values.dtype)


def _array(values: Column | Categories, kind: pa.DataType) -> pa.Array:
    if isinstance(values, Categories):
        return pa.DictionaryArray.from_arrays(_numbers(values.codes, pa.int8()), _texts(values.names))
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if pa.types.is_string(kind):
        return _texts([value if isinstance(value, str) else None for value in values])
    return _numbers(values.to_numpy(), kind)


def _numbers(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    known = None if values.dtype.kind != "f" or not (missing := np.isnan(values)).any() else ~missing
    data = _bits(values) if values.dtype == bool else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [None if known is None else _bits(known), data])


def _bits(flags: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _texts(texts: Sequence[str | None]) -> pa.Array:
    pieces = [b"" if text is None else text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, pieces)], dtype=np.int32)
    known = _bits(np.array([text is not None for text in texts], dtype=bool))
    return pa.Array.from_buffers(pa.string(), len(texts), [known, pa.py_buffer(ends), pa.py_buffer(b"".join(pieces))])


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> Table:
    """The columns of a file, or some of them, with NaN for what is missing. What is neither numbers nor flags is
    `Categories`, where that was written and none is missing, or a column of objects.

    Raises:
        KeyError: the file has no such column.
        pyarrow.ArrowException, OSError: it cannot be read.
    """
    with parquet.ParquetFile(path) as file:
        known = file.schema_arrow.names
        if missing := [name for name in columns or () if name not in known]:
            raise KeyError(f"no column {missing[0]}")
        stored = file.read(columns=None if columns is None else [*columns])
    return Table({name: _column_of(stored[name]) for name in columns or known})


def _column_of(stored: pa.ChunkedArray) -> Any:
    kind, chunks = stored.type, [chunk for chunk in stored.unify_dictionaries().chunks if len(chunk)]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _joined(map(_numbers_in, chunks), kind)
    if pa.types.is_boolean(kind) and not stored.null_count:
        return _joined((_flags(chunk.buffers()[1], chunk) for chunk in chunks), kind)
    if pa.types.is_dictionary(kind) and not stored.null_count:
        names = chunks[0].dictionary.to_pylist() if chunks else []
        if len(names) <= _MOST_NAMES and all(isinstance(name, str) for name in names):
            codes = _joined((_numbers_in(chunk.indices) for chunk in chunks), kind.index_type)
            return Categories(codes.astype(np.int8), names)
    missing = None if pa.types.is_null(kind) else np.nan  # as pandas has them
    return objects([missing if value is None else value for value in stored.to_pylist()])


def _joined(parts: Iterable[NDArray[Any]], kind: pa.DataType) -> NDArray[Any]:
    return np.concatenate([np.empty(0, kind.to_pandas_dtype()), *parts])


def _numbers_in(array: pa.Array) -> NDArray[Any]:
    known, data = array.buffers()
    values = np.frombuffer(data, array.type.to_pandas_dtype())[array.offset : array.offset + len(array)]
    return np.where(_flags(known, array), values, np.nan) if array.null_count else values


def _flags(bits: pa.Buffer, array: pa.Array) -> NDArray[np.bool_]:
    """A bit for each value of an array."""
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little").view(np.bool_)
    return flags[array.offset : array.offset + len(array)]
