"""TwinServe's own trace formats: CSV and JSON lines whose columns are those of Trace.table."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.config.workload import MAX_TOKENS
from harness.errors import TraceError
from harness.workload.readers.checks import counts, durations, integers, numbers_from_json, ordinals, times, tokens
from harness.workload.readers.csv_file import require_columns
from harness.workload.readers.files import JsonBatch, first_record, json_batches
from harness.workload.readers.lists import ObjectArray, integer_lists, list_lengths, num_blocks
from harness.workload.readers.sieve import RowRules, RowSieve
from harness.workload.readers.tabular import Columns, NumberCheck, build_trace, collect, collect_csv, number_column
from harness.workload.trace import Trace

_REQUIRED = ("num_prompt_tokens", "num_output_tokens")
_CHECKS: dict[str, NumberCheck] = {
    "arrival_time": times,
    "num_prompt_tokens": tokens,
    "num_output_tokens": tokens,
    "n": counts,
    "priority": integers,
    "tenant": integers,
    "deadline": durations,
    "session_id": ordinals,
    "turn": ordinals,
}
_CSV_COLUMNS = ("request_id", *_CHECKS)
_JSON_KEYS = (*_CSV_COLUMNS, "hash_ids", "hash_block_size", "token_ids")

_RENUMBERED = "request_id of the file not kept: requests are numbered from 0"


def read_csv(path: str, rules: RowRules) -> Trace:
    """Reads a CSV file with the columns num_prompt_tokens, num_output_tokens and, optionally, arrival_time (s),
    n (samples of the prompt), priority, tenant, deadline (s after the arrival), session_id with turn, and request_id.

    Raises:
        TraceError: the file cannot be read, has a column that is not one of these, or has no usable row.
    """
    header = require_columns(path, _REQUIRED, "a trace")
    _check_names(path, header, _CSV_COLUMNS)
    sieve = RowSieve(path, rules)
    wanted = [number_column(name, name, check) for name, check in _CHECKS.items() if name in header]
    columns = collect_csv(path, wanted, sieve)
    return build_trace(Path(path).stem, columns, sieve, notes=(_RENUMBERED,) if "request_id" in header else ())


def read_jsonl(path: str, rules: RowRules) -> Trace:
    """Reads JSON lines with the keys of `read_csv`, and optionally hash_ids with hash_block_size, and token_ids.

    Every line has the keys of the first one and the same hash_block_size.

    Raises:
        TraceError: the file cannot be read, has a key that is not one of these, or has no usable row.
    """
    first = first_record(path, _REQUIRED, "a trace")
    _check_names(path, first, _JSON_KEYS)
    block_size = _hash_block_size(path, first)
    sieve = RowSieve(path, rules)
    columns = collect(json_batches(path), partial(_parse_json, frozenset(first), block_size), sieve)
    return build_trace(
        Path(path).stem,
        columns,
        sieve,
        hash_block_size=block_size,
        notes=(_RENUMBERED,) if "request_id" in first else (),
    )


def _check_names(path: str, names: Collection[str], allowed: Sequence[str]) -> None:
    for name in names:
        if name not in allowed:
            raise TraceError(f"{path}: unknown column {name!r} (allowed: {', '.join(allowed)})")
    if "turn" in names and "session_id" not in names:
        raise TraceError(f"{path}: turn without session_id; name the session each turn belongs to")


def _hash_block_size(path: str, first: Mapping[str, Any]) -> int | None:
    if "hash_ids" not in first and "hash_block_size" not in first:
        return None
    size = first.get("hash_block_size")
    if "hash_ids" not in first or type(size) is not int or not 1 <= size <= MAX_TOKENS:
        raise TraceError(
            f"{path}: hash_ids and hash_block_size (tokens per id, an integer >= 1, <= {MAX_TOKENS}) belong together"
        )
    return size


def _parse_json(names: frozenset[str], block_size: int | None, batch: JsonBatch, sieve: RowSieve) -> Columns:
    other_keys = _mask(record.keys() != names for record in batch.records)
    for record in compress(batch.records, other_keys):
        _check_names(sieve.path, record, _JSON_KEYS)
    columns: Columns = {
        name: check(numbers_from_json(batch.column(name)), name, sieve)
        for name, check in _CHECKS.items()
        if name in names and (sieve.rules.with_times or name != "arrival_time")
    }
    sieve.reject(other_keys, "the keys are not those of the first line")
    if block_size is not None:
        columns["hash_ids"] = _parse_hash_ids(block_size, columns["num_prompt_tokens"], batch, sieve)
    if "token_ids" in names:
        columns["token_ids"] = integer_lists(batch.column("token_ids"), "token_ids", sieve, np.int32)
        wrong = list_lengths(columns["token_ids"]) != columns["num_prompt_tokens"]
        sieve.reject(wrong, "token_ids does not hold num_prompt_tokens ids")
        sieve.reject(_mask(bool((ids < 0).any()) for ids in columns["token_ids"]), "token_ids holds a negative id")
    return columns


def _parse_hash_ids(
    block_size: int, num_prompt_tokens: npt.NDArray[np.int64], batch: JsonBatch, sieve: RowSieve
) -> ObjectArray:
    sieve.reject(
        _mask(size != block_size for size in batch.column("hash_block_size")),
        "hash_block_size is not that of the first line",
    )
    hash_ids = integer_lists(batch.column("hash_ids"), "hash_ids", sieve, np.int64)
    wrong = list_lengths(hash_ids) != num_blocks(num_prompt_tokens, block_size)
    sieve.reject(wrong, "wrong number of hash_ids for num_prompt_tokens (one for each hash_block_size tokens)")
    return hash_ids


def _mask(values: Iterable[bool]) -> npt.NDArray[np.bool_]:
    return np.array(list(values), dtype=bool)
