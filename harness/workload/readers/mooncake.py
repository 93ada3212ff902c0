"""Mooncake traces (kvcache-ai/Mooncake): JSON lines with hash ids of the prompts' 512-token blocks.

Those of AIPerf may lack any of the columns: a line has input_length, text_input or messages; lines with a session_id
are turns, whose input_length is that of the new message, and which come `delay` after the answer before.
"""

import numpy as np

from harness.workload.rows.lists import integer_lists, list_lengths, num_blocks
from harness.workload.rows.sieve import RowRules, RowSieve
from harness.workload.rows.tabular import Columns, build_trace, collect
from harness.workload.rows.trace_files import JsonBatch, first_record, json_batches
from harness.workload.rows.value_checks import numbers_from_json, times, tokens
from harness.workload.trace import Trace

HASH_BLOCK_SIZE = 512

_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")


def read(path: str, rules: RowRules, output_tokens: int | None = None, tokenizer: str | None = None) -> Trace:
    """Reads a trace; its times are in milliseconds, and many requests share one.

    Args:
        output_tokens: of answers whose length is not told.
        tokenizer: counts the tokens of texts.

    Raises:
        TraceError: the file cannot be read, is of another format, or has no usable row.
        ConfigError: there are texts and no tokenizer, or the other way round, or it cannot be loaded.
    """
    first = first_record(path, (), "a Mooncake trace")
    if not set(_KEYS) <= set(first) or "session_id" in first:
        from harness.workload.readers import aiperf_mooncake  # imported late, as it brings pandas

        return aiperf_mooncake.read(path, rules, HASH_BLOCK_SIZE, output_tokens, tokenizer)
    sieve = RowSieve(path, rules)
    columns = collect(json_batches(path), _parse, sieve)
    return build_trace("mooncake", columns, sieve, ticks_per_second=1000, hash_block_size=HASH_BLOCK_SIZE)


def _parse(batch: JsonBatch, sieve: RowSieve) -> Columns:
    prompts = tokens(numbers_from_json(batch.column("input_length")), "input_length", sieve)
    columns: Columns = {
        "num_prompt_tokens": prompts,
        "num_output_tokens": tokens(numbers_from_json(batch.column("output_length")), "output_length", sieve),
        "hash_ids": integer_lists(batch.column("hash_ids"), "hash_ids", sieve, np.int64),
    }
    if sieve.rules.with_times:
        columns["arrival_time"] = times(numbers_from_json(batch.column("timestamp")), "timestamp", sieve)
    wrong = list_lengths(columns["hash_ids"]) != num_blocks(prompts, HASH_BLOCK_SIZE)
    sieve.reject(wrong, f"wrong number of hash ids for input_length (blocks of {HASH_BLOCK_SIZE})")
    return columns
