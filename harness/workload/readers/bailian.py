"""Qwen-Bailian traces (alibaba-edu/qwen-bailian-usagetraces-anon): JSON lines of conversations, with hash ids of the
prompts' 16-token blocks."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from harness.workload.readers.own.plain import parse_hash_ids
from harness.workload.rows.lists import ObjectArray
from harness.workload.rows.sieve import RowRules, RowSieve
from harness.workload.rows.tabular import Columns, build_trace, collect
from harness.workload.rows.trace_files import JsonBatch, first_record, json_batches
from harness.workload.rows.value_checks import integers, numbers_from_json, times, tokens
from harness.workload.trace import Trace

HASH_BLOCK_SIZE = 16

_KEYS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids")


def read(path: str, rules: RowRules) -> Trace:
    """Reads a trace; its times are in seconds. A request continues the conversation of its parent.

    Raises:
        TraceError: the file cannot be read, is of another format, or has no usable row.
    """
    first_record(path, _KEYS, "a Qwen-Bailian trace")
    sieve = RowSieve(path, rules)
    roots: dict[int, int] = {}  # chat -> the first chat of its conversation
    columns = collect(json_batches(path), partial(_parse, roots), sieve)
    return build_trace("bailian", columns, sieve, hash_block_size=HASH_BLOCK_SIZE)


def _parse(roots: dict[int, int], batch: JsonBatch, sieve: RowSieve) -> Columns:
    def numbers(key: str) -> NDArray[np.int64]:
        return integers(numbers_from_json(batch.column(key)), key, sieve)

    prompts = tokens(numbers_from_json(batch.column("input_length")), "input_length", sieve)
    chats, parents = numbers("chat_id"), numbers("parent_chat_id")
    for chat, parent in zip(chats.tolist(), parents.tolist(), strict=True):
        roots[chat] = roots.get(parent, chat)
    columns: Columns = {
        "num_prompt_tokens": prompts,
        "num_output_tokens": tokens(numbers_from_json(batch.column("output_length")), "output_length", sieve),
        "session_id": np.array([roots[chat] for chat in chats.tolist()], dtype=np.int64),
        "hash_ids": _chained(parse_hash_ids(HASH_BLOCK_SIZE, prompts, [], batch.column("hash_ids"), sieve)),
    }
    if sieve.rules.with_times:
        columns["arrival_time"] = times(numbers_from_json(batch.column("timestamp")), "timestamp", sieve)
    return columns


def _chained(hash_ids: ObjectArray) -> ObjectArray:
    """Ids of the prompts up to each block, for the file's ids of the blocks alone: sums of 64-bit hashes of each id and
    its place, which no two of 10^8 prefixes share but by a chance of 3 in 10,000."""
    return np.fromiter(map(_prefix_ids, hash_ids), dtype=object, count=len(hash_ids))


def _prefix_ids(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    places = np.arange(len(ids), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = _mix(_mix(ids.astype(np.uint64)) + places)
    return np.cumsum(mixed, dtype=np.uint64).view(np.int64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
