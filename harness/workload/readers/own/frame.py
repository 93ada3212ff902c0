"""Traces that are tables in memory: of a caller in Python, or of a function of the user's own."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from harness.config.schema.traffic.trace_files import TRACE_COLUMNS
from harness.errors import TraceError
from harness.workload.readers.own import plain
from harness.workload.rows import value_checks
from harness.workload.rows.layout import Layout, texts_from_json
from harness.workload.rows.sieve import RowRules, RowSieve
from harness.workload.rows.tabular import Columns, build_trace, collect
from harness.workload.trace import Trace

_OWN_NAMES = Layout()


def read(
    table: pd.DataFrame, source: str, rules: RowRules, layout: Layout = _OWN_NAMES, name: str | None = None
) -> Trace:
    """Checks a table row by row, as the rows of a file with the columns of the trace table.

    Args:
        source: names the table in messages and results; name: in tables and figures, by default the same.
        layout: other names of columns, and the unit of the times. A column of dates needs no unit.

    Raises:
        TraceError: a column is missing or is not one of the trace table, or no row is usable.
    """
    names = plain.names_in(source, [str(column) for column in table], TRACE_COLUMNS, layout)
    for column in plain.REQUIRED:
        if column not in names:
            raise TraceError(f"{source}: no column {column}; a trace has {', '.join(plain.REQUIRED)} at least")
    ours = table[list(names.values())].set_axis(list(names), axis=1)
    first = {str(column): _plain(value) for column, value in ours.iloc[0].items()} if len(ours) else {}
    block_size = plain.hash_block_size(source, first, layout)
    if "arrival_time" in ours and pd.api.types.is_datetime64_any_dtype(ours["arrival_time"]):
        ours = ours.assign(arrival_time=pd.to_datetime(ours["arrival_time"], utc=True).map(_iso, na_action="ignore"))
        layout = replace(layout, time_unit="date")
    sieve = RowSieve(source, rules, unit="row")
    columns = collect([_Rows(ours)], partial(_parse, block_size, layout), sieve)
    notes = (plain.RENUMBERED,) if "request_id" in names else ()
    return build_trace(
        name or source,
        columns,
        sieve,
        ticks_per_second=layout.ticks_per_second,
        hash_block_size=block_size,
        notes=notes,
    )


class _Rows:
    """The table as one chunk of rows, counted from 1."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table
        self.lines = np.arange(1, len(table) + 1)
        self.malformed: list[tuple[int, str]] = []


def _parse(block_size: int | None, layout: Layout, rows: _Rows, sieve: RowSieve) -> Columns:
    table = rows.table
    columns: Columns = {}
    for name, check in plain.CHECKS.items():
        if name not in table or (name == "arrival_time" and not sieve.rules.with_times):
            continue
        if times := layout.times_of_text(name):
            values = [None if value is None or value != value else _plain(value) for value in table[name]]
            columns[name] = times(texts_from_json(values), name, sieve)
        else:
            columns[name] = layout.check(name, check)(_numbers(table[name]), name, sieve)
    num_prompt_tokens = columns["num_prompt_tokens"]
    if block_size is not None:
        sizes = _lists(table["hash_block_size"]) if "hash_block_size" in table else []
        hash_ids = _lists(table["hash_ids"])
        columns["hash_ids"] = plain.parse_hash_ids(block_size, num_prompt_tokens, sizes, hash_ids, sieve)
    if "token_ids" in table:
        columns["token_ids"] = plain.parse_token_ids(num_prompt_tokens, _lists(table["token_ids"]), sieve)
    if "waits_for" in table:
        columns |= plain.parse_waits(_numbers(table["request_id"]), _lists(table["waits_for"]), sieve)
    return columns


def _numbers(column: pd.Series) -> value_checks.Numbers:
    return value_checks.Numbers(value_checks.as_floats(column), column.isna().to_numpy())


def _lists(column: pd.Series) -> list[object]:
    return [_plain(value) for value in column]


def _plain(value: Any) -> Any:
    """A value of numpy as one of Python."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _iso(time: pd.Timestamp) -> str:
    return time.isoformat()
