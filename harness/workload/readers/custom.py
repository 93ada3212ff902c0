"""Traces that a function of the user's own reads or draws."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.config import CustomTrace
from harness.config.targets import errors_of, find
from harness.config.workload import TRACE_COLUMNS
from harness.errors import ConfigError
from harness.workload.readers import plain
from harness.workload.readers.checks import Numbers
from harness.workload.readers.layout import Layout
from harness.workload.readers.sieve import RowRules, RowSieve
from harness.workload.readers.tabular import Columns, build_trace, collect
from harness.workload.trace import Trace

_KEY = "trace.target"


def read(config: CustomTrace, rng: np.random.Generator, rules: RowRules) -> Trace:
    """Calls the function and checks what it returns, row by row, as the rows of a file.

    Raises:
        ConfigError: the function fails, is named by a stored configuration only, or returns no requests.
        TraceError: it returns a column that is not one of the trace table, or no usable row.
    """
    function = find(_KEY, config.target)
    with errors_of(_KEY, config.target):
        found = function(path=config.path, rng=rng, **config.options)
        table = pd.DataFrame(found) if isinstance(found, Mapping) else found
    if not isinstance(table, pd.DataFrame):
        kind = type(table).__name__
        raise ConfigError(f"{_KEY}={config.target!r}: returned {kind}; must be a DataFrame, or columns by name")
    for name in plain.REQUIRED:
        if name not in table:
            raise ConfigError(f"{_KEY}={config.target!r}: returned no column {name}")
    source = config.path or config.target
    plain.names_in(source, [str(name) for name in table], TRACE_COLUMNS, Layout())
    first = {str(name): _plain(value) for name, value in table.iloc[0].items()} if len(table) else {}
    block_size = plain.hash_block_size(source, first)
    sieve = RowSieve(source, rules, unit="row")
    columns = collect([_Rows(table)], partial(_parse, block_size), sieve)
    name = Path(source).stem if config.path else config.target.partition(":")[2]
    return build_trace(name, columns, sieve, hash_block_size=block_size)


class _Rows:
    """The table as one chunk of rows, counted from 1."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table
        self.lines = np.arange(1, len(table) + 1)
        self.malformed: list[tuple[int, str]] = []


def _parse(block_size: int | None, rows: _Rows, sieve: RowSieve) -> Columns:
    table = rows.table
    columns: Columns = {}
    for name, check in plain.CHECKS.items():
        if name in table and (sieve.rules.with_times or name != "arrival_time"):
            columns[name] = check(_numbers(table[name]), name, sieve)
    num_prompt_tokens = columns["num_prompt_tokens"]
    if block_size is not None:
        sizes, hash_ids = _lists(table["hash_block_size"]), _lists(table["hash_ids"])
        columns["hash_ids"] = plain.parse_hash_ids(block_size, num_prompt_tokens, sizes, hash_ids, sieve)
    if "token_ids" in table:
        columns["token_ids"] = plain.parse_token_ids(num_prompt_tokens, _lists(table["token_ids"]), sieve)
    return columns


def _numbers(column: pd.Series) -> Numbers:
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return Numbers(values, column.isna().to_numpy())


def _lists(column: pd.Series) -> list[object]:
    return [_plain(value) for value in column]


def _plain(value: Any) -> Any:
    """A value of numpy as one of Python."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
