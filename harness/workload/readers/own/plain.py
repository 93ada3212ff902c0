"""TwinServe's own trace formats: CSV and JSON lines whose columns are those of Trace.table, or JSON with messages."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.config.schema.traffic.trace_files import MESSAGES, TRACE_COLUMNS, Delimiter
from harness.errors import TraceError
from harness.workload.readers.messages import MessageCounter
from harness.workload.rows.csv_file import DELIMITERS, csv_header, require_columns
from harness.workload.rows.layout import Layout, reject_dates, texts_from_json
from harness.workload.rows.lists import ObjectArray, integer_lists, list_lengths, num_blocks
from harness.workload.rows.sieve import RowRules, RowSieve
from harness.workload.rows.tabular import Columns, NumberCheck, build_trace, collect, collect_csv
from harness.workload.rows.trace_files import JsonBatch, first_record, json_batches
from harness.workload.rows.value_checks import (
    Numbers,
    counts,
    durations,
    integers,
    numbers_from_json,
    ordinals,
    times,
    tokens,
    waits,
)
from harness.workload.trace import Trace
from simulator.quantities import MAX_TOKENS

Ints = npt.NDArray[np.int64]

REQUIRED = ("num_prompt_tokens", "num_output_tokens")
CHECKS: dict[str, NumberCheck] = {
    "arrival_time": times,
    "num_prompt_tokens": tokens,
    "num_output_tokens": tokens,
    "n": counts,
    "priority": integers,
    "tenant": integers,
    "deadline": durations,
    "session_id": ordinals,
    "turn": ordinals,
    "think_time": waits,
}
_CSV_COLUMNS = ("request_id", *CHECKS)
_OWN_NAMES = Layout()

RENUMBERED = "request_id of the file not kept: requests are numbered from 0"


def read_csv(path: str, rules: RowRules, layout: Layout = _OWN_NAMES, delimiter: Delimiter = "comma") -> Trace:
    """Reads a CSV file with the columns num_prompt_tokens, num_output_tokens and, optionally, arrival_time (s),
    n (samples of the prompt), priority, tenant, deadline (s after the arrival), session_id with turn, think_time (s
    after the turn before), and request_id. `layout` may give them other names.

    Raises:
        TraceError: the file cannot be read, has a column that is not one of these, or has no usable row.
    """
    for name, sign in DELIMITERS.items():
        if name != delimiter and set(layout.in_file(REQUIRED)) <= set(csv_header(path, sign)):
            raise TraceError(f"{path}: its columns are not divided by {delimiter}: set trace.delimiter={name}")
    header = require_columns(path, layout.in_file(REQUIRED), "a trace", DELIMITERS[delimiter], layout.proposal)
    names = names_in(path, header, _CSV_COLUMNS, layout)
    sieve = RowSieve(path, rules)
    wanted = [layout.csv_column(names[ours], ours, check) for ours, check in CHECKS.items() if ours in names]
    columns = collect_csv(path, wanted, sieve, DELIMITERS[delimiter])
    notes = (RENUMBERED,) if "request_id" in names else ()
    return build_trace(Path(path).stem, columns, sieve, ticks_per_second=layout.ticks_per_second, notes=notes)


def read_jsonl(path: str, rules: RowRules, layout: Layout = _OWN_NAMES, tokenizer: str | None = None) -> Trace:
    """Reads JSON lines with the keys of `read_csv`, and optionally token_ids, and hash_ids with hash_block_size, which
    `layout` may state instead; or with messages, whose tokens a `tokenizer` counts.

    Every line has the keys of the first one and the same hash_block_size.

    Raises:
        TraceError: the file cannot be read, has a key that is not one of these, or has no usable row.
        ConfigError: there is a tokenizer without messages, or the other way round, or it cannot be loaded.
    """
    has_messages = layout.in_file([MESSAGES])[0] in first_record(path, (), "a trace")
    first = first_record(path, () if has_messages else layout.in_file(REQUIRED), "a trace", layout.proposal)
    names = names_in(path, first, (*TRACE_COLUMNS, MESSAGES), layout)
    counter = MessageCounter.for_file(path, names, tokenizer)
    block_size = hash_block_size(path, {ours: first[name] for ours, name in names.items()}, layout)
    sieve = RowSieve(path, rules)
    keys = _Keys(frozenset(first), names, layout, block_size, counter)
    return build_trace(
        Path(path).stem,
        collect(json_batches(path), partial(_parse_json, keys), sieve),
        sieve,
        ticks_per_second=layout.ticks_per_second,
        hash_block_size=block_size,
        notes=((RENUMBERED,) if "request_id" in names else ()) + (counter.notes if counter else ()),
    )


def names_in(path: str, found: Collection[str], known: Sequence[str], layout: Layout) -> dict[str, str]:
    """The name in the file of each column of ours that it has."""
    names = layout.names(path, found, known)
    if lacking := [name for name in ("request_id", "session_id") if "waits_for" in names and name not in names]:
        raise TraceError(f"{path}: waits_for without {lacking[0]}: it names requests of the same session")
    if "turn" in names and "session_id" not in names:
        if layout.columns and "turn" not in layout.columns.values():
            del names["turn"]  # of a file with other names, whose column means something else
            return names
        raise TraceError(f"{path}: turn without session_id; name the session each turn belongs to")
    return names


def hash_block_size(path: str, first: Mapping[str, Any], layout: Layout = _OWN_NAMES) -> int | None:
    """Tokens per hash id as the first row or `layout` states them; None without hash ids.

    Raises:
        TraceError: one is there without the other, out of range, or both state the size.
    """
    if "hash_ids" not in first and "hash_block_size" not in first and layout.hash_block_size is None:
        return None
    if "hash_block_size" in first and layout.hash_block_size is not None:
        raise TraceError(f"{path}: has a column hash_block_size, beside which trace.hash_block_size has no use")
    size = first.get("hash_block_size", layout.hash_block_size)
    if "hash_ids" not in first or type(size) is not int or not 1 <= size <= MAX_TOKENS:
        raise TraceError(
            f"{path}: hash_ids and hash_block_size (tokens per id, an integer >= 1, <= {MAX_TOKENS}) belong together; "
            "trace.hash_block_size=<tokens> gives the size of a file that has no such column"
        )
    return size


class _Keys(NamedTuple):
    """The keys of the first line, the names in the file of columns of ours, how they are read, tokens per hash id, and
    what counts the tokens of messages."""

    all: frozenset[str]
    names: Mapping[str, str]
    layout: Layout
    block_size: int | None
    counter: MessageCounter | None


def _parse_json(keys: _Keys, batch: JsonBatch, sieve: RowSieve) -> Columns:
    names, block_size = keys.names, keys.block_size
    if keys.layout.columns:  # only those that are read count
        read = frozenset(names.values())
        other_keys = _mask(not read <= record.keys() for record in batch.records)
    else:
        other_keys = _mask(record.keys() != keys.all for record in batch.records)
        for record in compress(batch.records, other_keys):
            names_in(sieve.path, record, (*TRACE_COLUMNS, MESSAGES), keys.layout)
    columns: Columns = keys.counter.columns(batch, sieve) if keys.counter else {}
    for ours, check in CHECKS.items():
        if ours in names and (sieve.rules.with_times or ours != "arrival_time"):
            columns[ours] = _number(keys, ours, check, batch, sieve)
    sieve.reject(other_keys, "the keys are not those of the first line")
    if block_size is not None:
        sizes = batch.column(names["hash_block_size"]) if "hash_block_size" in names else []
        hash_ids = batch.column(names["hash_ids"])
        columns["hash_ids"] = parse_hash_ids(block_size, columns["num_prompt_tokens"], sizes, hash_ids, sieve)
    if "token_ids" in names:
        columns["token_ids"] = parse_token_ids(columns["num_prompt_tokens"], batch.column(names["token_ids"]), sieve)
    if "waits_for" in names:
        ids = numbers_from_json(batch.column(names["request_id"]))
        columns |= parse_waits(ids, batch.column(names["waits_for"]), sieve)
    return columns


def _number(keys: _Keys, ours: str, check: NumberCheck, batch: JsonBatch, sieve: RowSieve) -> npt.NDArray[Any]:
    name = keys.names[ours]
    if times := keys.layout.times_of_text(ours):
        return times(texts_from_json(batch.column(name)), name, sieve)
    values = batch.column(name)
    if ours == "arrival_time" and any(isinstance(value, str) for value in values):
        reject_dates(texts_from_json(values), name, sieve)
    return keys.layout.check(ours, check)(numbers_from_json(values), name, sieve)


def parse_token_ids(num_prompt_tokens: Ints, values: Sequence[object], sieve: RowSieve) -> ObjectArray:
    """The token ids of each prompt: object[n] of int32 arrays."""
    token_ids = integer_lists(values, "token_ids", sieve, np.int32)
    wrong = list_lengths(token_ids) != num_prompt_tokens
    sieve.reject(wrong, "token_ids does not hold num_prompt_tokens ids")
    sieve.reject(_mask(bool((ids < 0).any()) for ids in token_ids), "token_ids holds a negative id")
    return token_ids


def parse_waits(request_ids: Numbers, values: Sequence[object], sieve: RowSieve) -> Columns:
    """The columns request_id, and waits_for: object[n] of int64 arrays of such ids, empty where there is none."""
    waits = integer_lists([[] if value is None else value for value in values], "waits_for", sieve, np.int64)
    return {"request_id": integers(request_ids, "request_id", sieve), "waits_for": waits}


def parse_hash_ids(
    block_size: int, num_prompt_tokens: Ints, sizes: Sequence[object], values: Sequence[object], sieve: RowSieve
) -> ObjectArray:
    """The hash ids of each prompt: object[n] of int64 arrays; `sizes` are the tokens per hash id of each row, if rows
    state them."""
    if sizes:
        sieve.reject(_mask(size != block_size for size in sizes), "hash_block_size is not that of the first line")
    hash_ids = integer_lists(values, "hash_ids", sieve, np.int64)
    wrong = list_lengths(hash_ids) != num_blocks(num_prompt_tokens, block_size)
    sieve.reject(wrong, "wrong number of hash_ids for num_prompt_tokens (one for each hash_block_size tokens)")
    return hash_ids


def _mask(values: Iterable[bool]) -> npt.NDArray[np.bool_]:
    return np.array(list(values), dtype=bool)
