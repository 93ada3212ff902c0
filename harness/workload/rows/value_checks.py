"""Checks of the values in a trace file. Each check marks bad rows in a RowSieve and returns typed values.

Values of rows that are marked are meaningless, but always of the right type.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.workload.rows.sieve import RowSieve
from simulator.quantities import MAX_TOKENS, RANGES

if TYPE_CHECKING:
    import pandas as pd

MAX_EXACT = 2.0**53  # every integer up to here is a float64
_MAX_TIME = 1e15  # ticks; the year 33658 in milliseconds


@dataclass(frozen=True)
class Numbers:
    """A column as numbers: `values` float64, NaN where the text is no number; `missing` bool, for empty cells."""

    values: npt.NDArray[np.float64]
    missing: npt.NDArray[np.bool_]


def as_floats(column: "pd.Series") -> npt.NDArray[np.float64]:
    """The numbers of a column, of which text tells some; NaN where there is none."""
    import pandas as pd

    texts = pd.Series(map(_as_text, column), dtype=object) if column.dtype == object else column
    return pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _as_text(value: object) -> str:
    """What may be a number, as an integer may have more digits than a float; the rest is none."""
    if isinstance(value, list | dict):
        return ""
    text = str(value)
    return text if text.isascii() else ""


def numbers_from_json(values: Sequence[object]) -> Numbers:
    """Takes JSON numbers as they are; null counts as missing, text and booleans as no number."""
    if set(map(type, values)) <= {int, float}:
        try:
            known = np.array(values, dtype=np.float64)
        except OverflowError:  # an integer beyond all floats
            known = np.array([np.inf])
        if (np.abs(known) <= MAX_EXACT).all():
            return Numbers(known, np.zeros(len(known), dtype=bool))
    return Numbers(np.array([_as_float(value) for value in values]), np.array([value is None for value in values]))


def _as_float(value: object) -> float:
    if type(value) is float or (type(value) is int and abs(value) <= MAX_EXACT):
        return float(value)
    return np.inf if type(value) is int else np.nan


def finite(numbers: Numbers, name: str, sieve: RowSieve) -> npt.NDArray[np.float64]:
    """Numbers as they are: float64."""
    sieve.reject(numbers.missing, f"{name} is missing")
    bad = ~np.isfinite(numbers.values)
    sieve.reject(bad, f"{name} is not a finite number")
    return np.where(bad, 0.0, numbers.values)


def times(numbers: Numbers, name: str, sieve: RowSieve, most: float = _MAX_TIME) -> npt.NDArray[np.float64]:
    """Numbers up to 10^15 in size, or to `most`, whatever their unit: float64."""
    values = finite(numbers, name, sieve)
    large = np.abs(values) > most
    sieve.reject(large, f"{name} is too large")
    return np.where(large, 0.0, values)


def durations(numbers: Numbers, name: str, sieve: RowSieve) -> npt.NDArray[np.float64]:
    """Times >= 0: float64."""
    values = times(numbers, name, sieve)
    sieve.reject(values < 0, f"{name} is negative")
    return values


def waits(numbers: Numbers, name: str, sieve: RowSieve) -> npt.NDArray[np.float64]:
    """Times >= 0, and 0 for an empty cell: float64."""
    values = np.where(numbers.missing, 0.0, numbers.values)
    return durations(Numbers(values, np.zeros_like(numbers.missing)), name, sieve)


def integers(numbers: Numbers, name: str, sieve: RowSieve) -> npt.NDArray[np.int64]:
    """Whole numbers up to 2^53 in size: int64."""
    values = finite(numbers, name, sieve)
    sieve.reject(values != np.floor(values), f"{name} is not a whole number")
    large = np.abs(values) > MAX_EXACT
    sieve.reject(large, f"{name} is too large")
    return np.where(large, 0.0, values).astype(np.int64)


def ordinals(numbers: Numbers, name: str, sieve: RowSieve) -> npt.NDArray[np.int64]:
    """Whole numbers >= 0, for turns and sessions: int64."""
    values = integers(numbers, name, sieve)
    sieve.reject(values < 0, f"{name} is negative")
    return values


def counts(numbers: Numbers, name: str, sieve: RowSieve) -> npt.NDArray[np.int64]:
    """Numbers of sequences, from 1 to as many as may run: int64."""
    values = ordinals(numbers, name, sieve)
    sieve.reject(values == 0, f"{name} is 0")
    most = RANGES["max_num_seqs"].high
    sieve.reject(values > most, f"{name} is larger than {most}")
    return values


def tokens(numbers: Numbers, name: str, sieve: RowSieve, zero: str | None = None) -> npt.NDArray[np.int64]:
    """Numbers of tokens, >= 1: int64. `zero` is the reason given for 0, where the format has a meaning for it."""
    values = ordinals(numbers, name, sieve)
    sieve.reject(values == 0, zero or f"{name} is 0")
    sieve.reject(values > MAX_TOKENS, f"{name} is larger than {MAX_TOKENS}")
    return values
