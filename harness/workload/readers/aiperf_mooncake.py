"""Traces in AIPerf's variants of Mooncake's format: turns of sessions, texts, and lines that lack lengths or times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import ConfigError, TraceError
from harness.workload.readers.agents.calls import LONGEST, documents, number, session_key, whole_ids
from harness.workload.readers.messages import texts_of
from harness.workload.readers.own import frame
from harness.workload.rows.layout import Layout
from harness.workload.rows.sieve import RowRules
from harness.workload.text_tokens import Encode, load_tokenizer
from harness.workload.trace import Trace

_TEXTS = ("text_input", "messages")
_WHAT = "a Mooncake trace: each line must be a JSON object with input_length, text_input or messages"


def read(path: str, rules: RowRules, block_size: int, output_tokens: int | None, tokenizer: str | None) -> Trace:
    """Reads a trace. A turn of a session goes on from the turn before and its answer; where it has `messages`, they are
    all of its prompt.

    Raises:
        TraceError: the file cannot be read, is of another format, or has no usable row.
        ConfigError: there are texts and no tokenizer, or the other way round, or it cannot be loaded.
    """
    lines = list(documents(path, (), _WHAT))
    if not lines or not any(name in lines[0] for name in ("input_length", *_TEXTS)):
        raise TraceError(f"{path}: not {_WHAT}")
    encode = _encoder(path, any(name in line for line in lines for name in _TEXTS), tokenizer)
    columns = _lengths(lines, output_tokens, encode)
    notes = []
    if all(number(line.get("timestamp")) is not None for line in lines):
        columns["arrival_time"] = [line["timestamp"] for line in lines]
    elif any("timestamp" in line for line in lines):
        notes.append("timestamps are not used, as only some requests have one")
    has_ids = all(isinstance(line.get("hash_ids"), list) for line in lines)
    if has_ids:
        columns["hash_ids"] = [
            whole_ids(line["hash_ids"], prompt, block_size, -1 - row)
            for row, (line, prompt) in enumerate(zip(lines, columns["num_prompt_tokens"], strict=True))
        ]
    if any(line.get("session_id") is not None for line in lines):
        columns |= _sessions(lines, columns, block_size)
    table = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    layout = Layout(time_unit="ms", hash_block_size=block_size if has_ids else None)
    trace = frame.read(table, path, rules, layout, name="mooncake")
    kept = [note for note in trace.notes if "request_id" not in note]
    return replace(trace, notes=(*kept, *notes))


def _encoder(path: str, has_texts: bool, tokenizer: str | None) -> Encode | None:
    if has_texts and tokenizer is None:
        raise ConfigError(
            f"{path}: set trace.tokenizer=<folder of the model, or its tokenizer.json> to count its texts"
        )
    if tokenizer is not None and not has_texts:
        raise ConfigError(f"trace.tokenizer={tokenizer!r}: {path} holds lengths, no texts; leave it out")
    return None if tokenizer is None else load_tokenizer(tokenizer)


def _lengths(lines: Sequence[dict[str, Any]], output_tokens: int | None, encode: Encode | None) -> dict[str, list[Any]]:
    """Of each line alone. Where all are texts, their tokens, too."""
    prompts: list[Any] = [line.get("input_length") for line in lines]
    tokens: list[Any] = []
    for row, line in enumerate(lines):
        if encode is not None and (texts := _texts(line)) is not None:
            tokens.append(np.array([token for ids in encode(texts) for token in ids], dtype=np.int32))
            prompts[row] = len(tokens[-1])
    outputs = [output_tokens if (own := line.get("output_length")) is None else own for line in lines]
    columns: dict[str, list[Any]] = {"num_prompt_tokens": prompts, "num_output_tokens": outputs}
    is_whole = all("messages" in line or line.get("session_id") is None for line in lines)
    return {**columns, "token_ids": tokens} if len(tokens) == len(lines) and is_whole else columns


def _texts(line: dict[str, Any]) -> list[str] | None:
    if isinstance(text := line.get("text_input"), str):
        return [text]
    return texts_of(line["messages"]) if "messages" in line else None


def _sessions(lines: Sequence[dict[str, Any]], columns: dict[str, list[Any]], block_size: int) -> dict[str, list[Any]]:
    """The columns of turns, each of which waits for the turn before, and whole prompts in place of new messages."""
    prompts, outputs = list(columns["num_prompt_tokens"]), columns["num_output_tokens"]
    hash_ids, new_ids = columns.get("hash_ids"), count(1 << 60)
    last: dict[Any, int] = {}
    waits_for: list[list[int]] = []
    for row, line in enumerate(lines):
        session = session_key(line.get("session_id"), row)
        earlier = last.get(session)
        waits_for.append([] if earlier is None else [earlier])
        last[session] = row
        lengths = [prompts[row], *([] if earlier is None else [prompts[earlier], outputs[earlier]])]
        if earlier is not None and "messages" not in line and all(type(each) is int for each in lengths):
            prompts[row] = sum(lengths)
            if hash_ids is not None:
                hash_ids[row] = _longer(hash_ids[earlier], prompts[row], block_size, new_ids)
    numbers: dict[Any, int] = defaultdict(lambda: len(numbers))
    found: dict[str, list[Any]] = {
        "request_id": list(range(len(lines))),
        "session_id": [numbers[session_key(line.get("session_id"), row)] for row, line in enumerate(lines)],
        "waits_for": waits_for,
        "think_time": [(number(line.get("delay")) or 0.0) / 1000 for line in lines],
        "num_prompt_tokens": prompts,
    }
    return found if hash_ids is None else {**found, "hash_ids": hash_ids}


def _longer(ids: list[Any] | None, num_tokens: int, block_size: int, new_ids: count[int]) -> list[Any] | None:
    """The ids of a prompt that begins with the blocks of another one; None if one of them is too long."""
    if ids is None or num_tokens > LONGEST:
        return None
    num_new = -(-num_tokens // block_size) - len(ids)
    return [*ids, *islice(new_ids, max(num_new, 0))]
