"""Tables as Parquet files, without pandas: what a short run writes must not import it, as pyarrow's own converters do.

NaN is stored as a missing value, as pandas stores it. A long table is written in parts, so that no copy of all of it
is made. Columns whose values hardly repeat, such as times, are written without a dictionary, which would take as long
as all else and be given up in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from simulator.table import Categories, Column, Table

_PART_ROWS = 50_000
_SAMPLE = 4096  # rows that tell whether the values of a column repeat


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
