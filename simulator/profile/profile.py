"""Kernel-cost profiles: what each operator of a model takes on a device, as small tables.

`time_us` are medians in microseconds of one call on one rank; `spread_us`, where given, is half the interquartile range
of the times. `simulator.profile.profile_folder` reads and writes a profile as a folder with a CSV file per table:

    tokens       operator,num_tokens,time_us      linear layers, norms, rotary, activation, KV store, embedding
    sequences    operator,num_sequences,time_us   LM head, sampler
    attention    prefill_tokens,prefill_context,num_decodes,decode_context,time_us   one layer
                 prefill_context: tokens before the chunk; decode_context: mean context of the decodes, their new token
                 included. Rows with a chunk and decodes are of batches that mix both (optional). On a CPU decodes drive
                 weights out of the caches, and what other operators take longer by that is in the decodes' times. With
                 token_buckets our profiler launches decodes as CUDA graphs do: padded to a bucket, and for the longest
                 context of the engine.
    uneven       prefill_tokens,num_decodes,gain   contexts of different lengths take as long as if each were
                 mean + gain·standard deviation (optional)
    deviations   num_decodes,decode_context,deviation_pct,time_us   one layer's decode attention of such contexts:
                 their mean, and their standard deviation in percent of it (optional; instead of uneven)
    all_reduce   num_bytes,time_us                with more than one rank (optional: a constant can stand in)
    experts      num_ranks,num_tokens,time_us     one layer's experts on one of num_ranks ranks that share them out
                 whole, for the tokens of all of them (optional)
    exchange     num_ranks,num_bytes,time_us      all-gather and reduce-scatter of so many bytes, those of all ranks
                 (optional)
    copies       num_blocks,time_us               copies of KV blocks before a step, all layers (optional)
    steps        kind,num_tokens,time_us          what a whole step takes beyond its operators: host overhead, launch
                 gaps, caches (optional); kind is decode, prefill or mixed
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.profile.meta import ProfileMeta
from simulator.quantities import RANGES
from simulator.table import Table, table_of

if TYPE_CHECKING:
    import pandas as pd

META = "meta.yaml"
LIKE_EXPERTS = "like_experts"  # among `server` in a meta's source: times of the most alike experts that were timed
KEYS = {
    "tokens": ("operator", "num_tokens"),
    "sequences": ("operator", "num_sequences"),
    "attention": ("prefill_tokens", "prefill_context", "num_decodes", "decode_context"),
    "uneven": ("prefill_tokens", "num_decodes"),
    "deviations": ("num_decodes", "decode_context", "deviation_pct"),
    "all_reduce": ("num_bytes",),
    "experts": ("num_ranks", "num_tokens"),
    "exchange": ("num_ranks", "num_bytes"),
    "copies": ("num_blocks",),
    "steps": ("kind", "num_tokens"),
}
_REQUIRED = ("tokens", "sequences", "attention")
_OPERATORS = {"tokens": ("qkv_proj", "o_proj"), "sequences": ("lm_head",)}
_MLP = ("gate_up_proj", "down_proj")  # of a dense model; a mixture of experts has "experts"
_KINDS = ("decode", "prefill", "mixed")
_TEXTS = ("operator", "kind")
_LONGEST_MESSAGE = 500


class ProfileError(ValueError):
    """A profile is missing, unreadable, incomplete, or was made for something else. The message is one line."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())  # it may cite any text that a file holds
        super().__init__(line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}...")


@dataclass(frozen=True, eq=False)
class Profile:
    """Tables by name, columns as in the module's description, sorted by their axes; `tables` are the same as
    DataFrames.

    Raises:
        ProfileError: a table or an operator is missing, or a table breaks the format.
    """

    meta: ProfileMeta
    rows: Mapping[str, Any]  # `Table` each; DataFrames are taken, too

    def __post_init__(self) -> None:
        missing = [name for name in _REQUIRED if name not in self.rows]
        if missing:
            raise ProfileError(f"no {' and '.join(missing)} table (there: {', '.join(self.rows) or 'none'})")
        object.__setattr__(self, "rows", {name: _checked(name, table) for name, table in self.rows.items()})
        self._check_operators()

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        return {name: table.frame() for name, table in self.rows.items()}

    def _check_operators(self) -> None:
        for name, required in _OPERATORS.items():
            there = set(self.rows[name]["operator"].tolist())
            if name == "tokens" and self.meta.shape.get("kv_rank"):
                required = ()  # the times of latent attention include its projections
            lacking = [operator for operator in required if operator not in there]
            if name == "tokens" and "experts" not in there:
                lacking += [operator for operator in _MLP if operator not in there]
            if lacking:
                raise ProfileError(f"{name}: no {', '.join(lacking)} (there: {', '.join(sorted(there))})")
            uncounted = sorted(there - set(self.meta.calls))
            if uncounted:
                raise ProfileError(f"{META}: calls of {', '.join(uncounted)} missing")
        measured = {operator for name in _OPERATORS for operator in self.rows[name]["operator"].tolist()}
        if unmeasured := sorted(set(self.meta.calls) - measured):
            raise ProfileError(f"{', '.join(unmeasured)}: in the calls of {META}, but not measured")
        attention = self.rows["attention"]
        for kind, other in (("prefill_tokens", "num_decodes"), ("num_decodes", "prefill_tokens")):
            if not ((attention[kind] > 0) & (attention[other] == 0)).any():
                raise ProfileError(f"attention: no rows with {other}=0, of {kind} alone")

    def holes(self) -> list[str]:
        """Attention points that are missing though others of their row and column were measured; a line per grid."""
        found = []
        attention = self.tables["attention"]
        for rows, columns, other in (
            ("num_decodes", "decode_context", "prefill_tokens"),
            ("prefill_tokens", "prefill_context", "num_decodes"),
        ):
            alone = attention[(attention[other] == 0) & (attention[rows] > 0)]
            grid = alone.pivot(index=rows, columns=columns, values="time_us")
            if missing := int(grid.isna().to_numpy().sum()):
                row, column = np.argwhere(grid.isna().to_numpy())[0]
                first = f"{rows}={grid.index[row]}, {columns}={grid.columns[column]}"
                found.append(f"{missing} of {grid.size} points of {rows} x {columns}, the first at {first}")
        return found


def _checked(name: str, given: Table | pd.DataFrame) -> Table:
    """The table with its columns in order and its rows sorted by the axes."""
    if name not in KEYS:
        raise ProfileError(f"{name}: unknown table (known: {', '.join(KEYS)})")
    keys = list(KEYS[name])
    columns = [*keys, "gain" if name == "uneven" else "time_us"]
    table = given if isinstance(given, Table) else table_of(given)
    if missing := [column for column in columns if column not in table]:
        raise ProfileError(
            f"{name}: no column {', '.join(missing)} (there: {', '.join(table)}); "
            "times are in microseconds, in a column time_us"
        )
    table = table[[*columns, *(["spread_us"] if "spread_us" in table else [])]]
    if table.empty:
        raise ProfileError(f"{name}: no rows")
    for column in table:
        if column in _TEXTS:
            _check_texts(f"{name}: {column}", table[column].tolist())
        else:
            quantity = "rest_us" if (name, column) == ("steps", "time_us") else column
            _check_values(f"{name}: {column}", table[column].to_numpy(), quantity, range(len(table)))
    if name == "steps" and (unknown := set(table["kind"].tolist()) - set(_KINDS)):
        raise ProfileError(f"steps: unknown kind {', '.join(sorted(unknown))} (known: {', '.join(_KINDS)})")
    _check_contexts(name, table)
    axes = [key for key in keys if key not in _TEXTS]
    return _sorted(name, table.assign(**{axis: table[axis].to_numpy(np.int64) for axis in axes}), keys)


def _sorted(name: str, table: Table, keys: list[str]) -> Table:
    """`table` sorted by `keys`, of which no two rows have the same."""
    ranks = np.array([np.unique(_sortable(table[key]), return_inverse=True)[1] for key in keys])
    order = np.lexsort(ranks[::-1])
    is_repeated = ~np.diff(ranks[:, order], axis=1).any(axis=0)
    if is_repeated.any():
        row = int(order[1:][is_repeated].min())
        raise ProfileError(f"{name}: {', '.join(f'{key}={table[key][row]}' for key in keys)} is there twice")
    return table[order]


def _sortable(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(str) if values.dtype == object else values


def check_texts(table: str, texts: pd.Series[Any]) -> None:
    """Raises ProfileError unless all values of a column are text."""
    _check_texts(f"{table}: {texts.name}", texts.tolist(), texts.index)


def _check_texts(column: str, texts: list[Any], rows: Any = None) -> None:
    """As `check_texts`; `rows` are the numbers of the rows, by default from 0."""
    wrong = [row for row, value in enumerate(texts) if not isinstance(value, str) or "\0" in value]
    if wrong:
        number, value = wrong[0] if rows is None else int(rows[wrong[0]]), texts[wrong[0]]
        told = repr(value) if isinstance(value, str) else value  # numpy does not tell a text from the same with NUL
        raise ProfileError(f"{column}={told} in row {number + 1}: must be text")


def check_numbers(
    table: str, numbers: pd.Series[Any], quantity: str, *, unit: float = 1.0, may_be_missing: bool = False
) -> None:
    """Check a column against the range of `quantity`, which may be given in another unit, of `unit` of ours.

    `may_be_missing`: cells may be empty or 0.

    Raises:
        ProfileError: a value is no number or out of range; the message names table, column, row and range.
    """
    empty = numbers.isna().to_numpy() if may_be_missing else None
    _check_values(f"{table}: {numbers.name}", numbers.to_numpy(), quantity, numbers.index, unit, empty)


def _check_values(
    column: str,
    cells: NDArray[Any],
    quantity: str,
    rows: Any,
    unit: float = 1.0,
    empty: NDArray[np.bool_] | None = None,
) -> None:
    """As `check_numbers`; `rows` are the numbers of the rows, and `empty` says which may be missing."""
    is_text = cells.dtype.kind not in "iuf"
    values = np.array([_as_number(cell) for cell in cells]) if is_text else cells.astype(np.float64)
    with np.errstate(over="ignore"):
        values = values * unit
    limits = RANGES[quantity]
    wrong = ~((values >= limits.low) & (values <= limits.high))
    if limits.is_whole:
        wrong |= values != np.floor(values)
    if empty is not None:
        wrong &= ~(empty | (values == 0))
    if is_text and not wrong.any():  # true and false, or numbers that are written as text
        wrong[:] = True
    if wrong.any():
        row = int(np.argmax(wrong))
        needed = limits if unit == 1.0 else limits.scaled(1 / unit)
        hint = "; times are in microseconds" if unit == 1.0 and str(quantity).endswith("_us") else ""
        raise ProfileError(f"{column}={cells[row]} in row {int(rows[row]) + 1}: must be {needed}{hint}")


def _as_number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _check_contexts(name: str, table: Table) -> None:
    """Raises ProfileError for a row whose chunk or decodes contradict their contexts."""
    if name not in ("attention", "deviations"):
        return
    is_alone = table["num_decodes"] == 0
    wrong = is_alone != (table["decode_context"] == 0)
    if name == "deviations":
        wrong |= is_alone
    else:
        without_chunk = table["prefill_tokens"] == 0
        wrong |= without_chunk & (is_alone | (table["prefill_context"] > 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        sizes = ", ".join(f"{key}={table[key][row]:.0f}" for key in KEYS[name])
        raise ProfileError(
            f"{name}: {sizes} is no step: each of the decodes has a context of 1 or more, and without decodes or "
            "without a chunk its context is 0"
        )
