"""ShareGPT conversations: the public JSON file, and CSV files of their lengths.

A conversation is read as exchanges, a user's message and the answer to it. With turns=first its first exchange is a
request; with turns=multi every exchange is one, whose prompt is the conversation so far.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.errors import ConfigError, TraceError
from harness.workload.readers import sharegpt_text
from harness.workload.rows.csv_file import csv_header, require_columns
from harness.workload.rows.sieve import RowRules, RowSieve
from harness.workload.rows.tabular import build_trace, collect_csv, number_column
from harness.workload.rows.trace_files import file_head
from harness.workload.rows.value_checks import Numbers, ordinals, tokens
from harness.workload.trace import Trace

Turns = Literal["first", "multi"]


def _first_turns(numbers: Numbers, name: str, sieve: RowSieve) -> npt.NDArray[np.int64]:
    turns = ordinals(numbers, name, sieve)
    sieve.ignore(turns > 0)
    return turns


# pd_ratio is left out: it is prefill/decode in some files of this family and the inverse in others.
_FIRST_EXCHANGES = (
    number_column("num_prefill_tokens", "num_prompt_tokens", tokens),
    number_column("num_decode_tokens", "num_output_tokens", tokens),
)
_CONVERSATIONS = (
    number_column("conversation_id", "session_id", ordinals),
    number_column("turn", "turn", ordinals),
    number_column("input_tokens", "num_prompt_tokens", tokens),
    number_column("output_tokens", "num_output_tokens", tokens),
)
_OPENINGS = (number_column("turn", "turn", _first_turns), *_CONVERSATIONS[2:])


def read(
    path: str,
    *,
    turns: Turns = "first",
    tokenizer: str | None = None,
    rules: RowRules,
) -> Trace:
    """Reads the public JSON, or a CSV with the columns num_prefill_tokens, num_decode_tokens (first exchanges) or
    conversation_id, turn, input_tokens, output_tokens (conversations), recognised by content. No times.

    Args:
        tokenizer: tokenizer.json, or a folder with one, that counts the tokens of the JSON's texts; None to estimate.

    Raises:
        TraceError: the file cannot be read, is of another format, has no usable row, or no conversations for
            turns=multi.
        ConfigError: the tokenizer cannot be loaded, or the file has no text for it.
    """
    if file_head(path).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return sharegpt_text.read(path, turns=turns, tokenizer=tokenizer, rules=rules)
    if tokenizer is not None:
        raise ConfigError(f"trace.tokenizer={tokenizer!r}: {path} holds lengths, no text; leave it out (null)")
    return _read_lengths(path, turns, RowSieve(path, rules))


def _read_lengths(path: str, turns: Turns, sieve: RowSieve) -> Trace:
    names = [column.name for column in _CONVERSATIONS]
    if not set(names) <= set(csv_header(path)):
        require_columns(path, [column.name for column in _FIRST_EXCHANGES], "ShareGPT JSON or lengths")
        if turns == "multi":
            raise TraceError(f"{path}: holds first exchanges only; set trace.turns=first, or name {', '.join(names)}")
        return build_trace("sharegpt", collect_csv(path, _FIRST_EXCHANGES, sieve), sieve)
    require_columns(path, names, "ShareGPT lengths")
    if turns == "multi":
        return build_trace("sharegpt", collect_csv(path, _CONVERSATIONS, sieve), sieve)
    columns = collect_csv(path, _OPENINGS, sieve)
    del columns["turn"]
    return build_trace("sharegpt", columns, sieve)
