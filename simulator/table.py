"""Tables of a run as plain columns: pandas takes a third of a second to import, which a short run need not pay.

A `Table` has the few operations of a DataFrame that runs need, under the same names, so that code which reads columns
takes either. `frame()` is the DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd


class Column(np.ndarray):
    """The values of a column: an array that also says `to_numpy`, as a Series does."""

    def to_numpy(self, dtype: Any = None) -> NDArray[Any]:
        return np.asarray(self, dtype=dtype)


class Categories:
    """A column of few different texts: `names[codes[row]]`. codes: int8[n]."""

    def __init__(self, codes: NDArray[np.int8], names: Sequence[str]) -> None:
        self.codes = codes
        self.names = tuple(names)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Categories:
        return Categories(self.codes[rows], self.names)

    def __eq__(self, name: object) -> Column:  # type: ignore[override]
        code = self.names.index(name) if name in self.names else len(self.names)
        return (self.codes == code).view(Column)

    def __ne__(self, name: object) -> Column:  # type: ignore[override]
        return ~(self == name)

    __hash__ = None  # type: ignore[assignment]

    def to_numpy(self) -> NDArray[Any]:
        return np.asarray(self.names, dtype=object)[self.codes]

    def tolist(self) -> list[str]:
        return [self.names[code] for code in self.codes.tolist()]


class Table:
    """Columns of equal length by name, in order. Tables share columns; nothing changes a column in place."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = {name: _column(values) for name, values in columns.items()}
        self._known: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return next((len(values) for values in self._columns.values()), 0)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __getitem__(self, key: Any) -> Any:
        """A column by its name, a table of the columns in a list, or a table of the rows that a slice or an array of
        flags or row numbers chooses."""
        if isinstance(key, str):
            return self._columns[key]
        if isinstance(key, list):
            return type(self)({name: self._columns[name] for name in key})
        return type(self)({name: _chosen(values, key) for name, values in self._columns.items()})

    @property
    def columns(self) -> list[str]:
        return [*self._columns]

    @property
    def empty(self) -> bool:
        return not len(self)

    @property
    def iloc(self) -> Self:
        """The table itself, which chooses rows by their numbers."""
        return self

    def assign(self, **columns: Any) -> Self:
        """The table with more columns, or others; a single value is that of every row."""
        more = {name: _spread(values, len(self)) for name, values in columns.items()}
        return type(self)({**self._columns, **more})

    def without(self, name: str) -> Self:
        """The table without a column."""
        return type(self)({each: values for each, values in self._columns.items() if each != name})

    def once(self, name: Hashable, find: Callable[[Self], Any]) -> Any:
        """What `find` finds of the table, under a name of its own: found once, as nothing changes a table."""
        if name not in self._known:
            self._known[name] = find(self)
        return self._known[name]

    def equals(self, other: Table) -> bool:
        """Whether the other has the same columns with the same numbers and texts, none of them missing."""
        return self.columns == other.columns and all(np.array_equal(self[name], other[name]) for name in self)

    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame, without a copy of the numbers."""
        import pandas as pd  # imported late, as the class is there to do without it

        return pd.DataFrame({name: _series(values) for name, values in self._columns.items()}, copy=False)


def groups(table: Any, column: str) -> Iterator[tuple[Any, Any]]:
    """The rows of each value of a column, and the value, in ascending order; of a DataFrame, too."""
    values = table[column].to_numpy()
    for value in sorted(set(values.tolist())):
        yield value, table[values == value]


def stacked(tables: Sequence[Table]) -> Table:
    """The rows of tables one below the other; NaN where one lacks a column of numbers."""
    names = dict.fromkeys(name for table in tables for name in table)
    return Table(
        {
            name: np.concatenate([table[name] if name in table else np.full(len(table), np.nan) for table in tables])
            for name in names
        }
    )


def constant(value: float, length: int) -> NDArray[Any]:
    """A column of one value, which takes no memory and cannot be written to."""
    return np.broadcast_to(np.asarray(value), length)


def is_constant(values: NDArray[Any]) -> bool:
    """Whether the values are a `constant`."""
    return values.strides == (0,)


def objects(values: Sequence[Any]) -> NDArray[np.object_]:
    """A column of values that are no numbers, such as arrays of different lengths."""
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def _chosen(values: Column | Categories, rows: Any) -> Any:
    """Some rows of a column; those of a constant are one, too."""
    if isinstance(values, Categories) or isinstance(rows, slice) or not is_constant(values) or not len(values):
        return values[rows]
    return constant(values[0], int(np.count_nonzero(rows)) if rows.dtype == bool else len(rows))


def _column(values: Any) -> Column | Categories:
    if isinstance(values, Categories):
        return values
    return np.asarray(values).view(Column)


def _spread(values: Any, length: int) -> Any:
    return np.full(length, values) if np.ndim(values) == 0 and not isinstance(values, Categories) else values


def _series(values: Column | Categories) -> Any:
    import pandas as pd

    if isinstance(values, Categories):
        return pd.Categorical.from_codes(values.codes, pd.Index(values.names))
    if values.dtype == object:
        return pd.Series(values.to_numpy(), dtype=object, copy=False)
    return values.to_numpy().copy() if is_constant(values) else values.to_numpy()


def table_of(frame: pd.DataFrame) -> Table:
    """The columns of a DataFrame, whose index is left out."""
    return Table({str(name): _of_series(frame[name]) for name in frame})


def _of_series(values: pd.Series) -> Any:
    """A column; few different texts that are all known stay `Categories`."""
    if values.dtype == "category" and len(values.cat.categories) < 128 and values.notna().all():
        return Categories(values.cat.codes.to_numpy().astype(np.int8), values.cat.categories.tolist())
    return values.to_numpy()


def frame_of(table: Table | pd.DataFrame) -> pd.DataFrame:
    """A table as a DataFrame."""
    return table.frame() if isinstance(table, Table) else table
