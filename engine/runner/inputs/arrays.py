"""Arrays of lists of unequal lengths and of tuples, as the inputs of a plan need them."""

from __future__ import annotations

from collections import abc

import numpy as np
from numpy.typing import NDArray

from engine.runner.inputs.sampling_inputs import Ints


def columns(entries: abc.Sequence[tuple[int, ...]], width: int) -> Ints:
    """Tuples of `width` numbers as the columns of an int64 array."""
    return np.ascontiguousarray(np.asarray(entries, np.int64).reshape(-1, width).T)


def padded(tables: abc.Sequence[list[int] | Ints]) -> NDArray[np.int32]:
    """Block tables of unequal length as one array, padded with 0."""
    out = np.zeros((len(tables), max(map(len, tables), default=0)), np.int32)
    for row, table in enumerate(tables):
        out[row, : len(table)] = table
    return out
