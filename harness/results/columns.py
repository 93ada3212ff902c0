"""Columns of the result tables as numbers, and sums and ratios that know what is undefined."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.results.tables import Floats, Rows


def floats(table: Rows, name: str) -> Floats:
    return table[name].to_numpy(dtype=np.float64)


def rows_where(chosen: npt.NDArray[np.bool_], table: Rows) -> Rows:
    """The chosen rows; the table itself where that are all, which saves a copy of it."""
    return table if chosen.all() else table[chosen]


def total(table: Rows, name: str) -> int:
    return int(table[name].to_numpy(dtype=np.int64).sum())


def known_total(table: Rows, name: str) -> float:
    """The sum of a column of counts; NaN where one is not known."""
    return math.nan if np.isnan(floats(table, name)).any() else total(table, name)


def ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else math.nan


def nan_min(values: Floats) -> float:
    return float(np.fmin.reduce(values, initial=math.nan))


def nan_max(values: Floats) -> float:
    return float(np.fmax.reduce(values, initial=math.nan))
