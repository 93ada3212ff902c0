"""The lists that JSON-lines traces carry: hash ids of prompt blocks, and token ids."""

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from harness.workload.rows.sieve import RowSieve

ObjectArray = npt.NDArray[np.object_]


def integer_lists(values: Sequence[object], name: str, sieve: RowSieve, dtype: type[np.integer]) -> ObjectArray:
    """Lists of integers as arrays of `dtype`: object[n]. Rejects what is no list of integers of that type."""
    arrays: Sequence[npt.NDArray[Any] | None] | None = _all_integers(values, dtype)
    if arrays is None:
        arrays = [_integers(value, dtype) for value in values]
    sieve.reject(np.array([value is None for value in values], dtype=bool), f"{name} is missing")
    sieve.reject(np.array([array is None for array in arrays], dtype=bool), f"{name} is not a list of whole numbers")
    empty = np.empty(0, dtype)
    return np.fromiter((empty if array is None else array for array in arrays), dtype=object, count=len(arrays))


def _all_integers(values: Sequence[object], dtype: type[np.integer]) -> list[npt.NDArray[Any]] | None:
    """The arrays where every value is a list of such integers, parts of one array; None where one is not."""
    if not set(map(type, values)) <= {list}:
        return None
    flat = list(chain.from_iterable(cast(Sequence[list[object]], values)))
    if not set(map(type, flat)) <= {int}:
        return None
    try:
        whole = np.array(flat, dtype=dtype)
    except OverflowError:
        return None
    ends = [*accumulate(map(len, cast(Sequence[list[object]], values)), initial=0)]
    return [whole[start:end] for start, end in pairwise(ends)]


def _integers(value: object, dtype: type[np.integer]) -> npt.NDArray[Any] | None:
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        return None
    try:
        return np.array(value, dtype=dtype)
    except OverflowError:
        return None


def list_lengths(arrays: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Number of elements of each array: int64[n]."""
    return np.fromiter(map(len, arrays), dtype=np.int64, count=len(arrays))


def num_blocks(num_tokens: npt.NDArray[np.int64], block_size: int) -> npt.NDArray[np.int64]:
    """Blocks that hold these tokens, the last one partial: int64[n]."""
    return -(-num_tokens // block_size)
