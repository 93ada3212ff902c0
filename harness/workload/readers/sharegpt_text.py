"""The public ShareGPT JSON: turns conversations into exchanges, and counts the tokens of their texts."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from harness.errors import TraceError
from harness.workload.rows.sieve import RowRules, RowSieve
from harness.workload.rows.tabular import build_trace
from harness.workload.rows.trace_files import open_trace
from harness.workload.text_tokens import load_tokenizer
from harness.workload.trace import Trace, conversation_columns

log = logging.getLogger(__name__)

BYTES_PER_TOKEN = 4  # of UTF-8; close to what current tokenizers make of English, too few tokens for other scripts

_PROMPT_SPEAKERS = ("human", "user", "system")
_ANSWER_SPEAKERS = ("gpt", "chatgpt", "assistant", "bing", "bard")

_NO_EXCHANGE = "no user message followed by an answer"  # of many conversations in the public file

Exchange = tuple[str, str]
TokenCounter = Callable[[Sequence[str]], npt.NDArray[np.int64]]


class _UnusableError(Exception):
    """A conversation cannot be made into requests, and why."""


def read(path: str, *, turns: Literal["first", "multi"], tokenizer: str | None, rules: RowRules) -> Trace:
    """Reads `[{"id": ..., "conversations": [{"from": ..., "value": ...}, ...]}, ...]`. Raises like `sharegpt.read`.

    Lengths are those of the messages; a chat template would add some tokens to each.
    """
    count = estimate_tokens if tokenizer is None else _counter(tokenizer)
    limit = rules.limit
    sieve = RowSieve(path, replace(rules, limit=None), unit="conversation", expected=[_NO_EXCHANGE])
    conversations = _exchanges(_load(path), sieve, 1 if turns == "first" else None, limit)
    sieve.require_usable(len(conversations))
    notes = ["message texts only: the tokens of a chat template are not counted"]
    if tokenizer is None:
        notes.append(f"token counts estimated from the text: one token per {BYTES_PER_TOKEN} UTF-8 bytes, rounded up")
        log.warning("%s: %s; set trace.tokenizer for exact ones", path, notes[-1])
    columns = _columns(conversations, count)
    if turns == "first":
        del columns["session_id"], columns["turn"]
    columns = {name: values[:limit] for name, values in columns.items()}
    return build_trace("sharegpt", columns, sieve, notes=tuple(notes))


def estimate_tokens(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Estimates the tokens of texts by their size: int64[n], >= 1 for a text that is not empty."""
    sizes = np.array([len(text.encode()) for text in texts], dtype=np.int64)
    return -(-sizes // BYTES_PER_TOKEN)


def _counter(tokenizer: str) -> TokenCounter:
    encode = load_tokenizer(tokenizer)
    # A normaliser may strip a text to nothing; a request still has a token.
    return lambda texts: np.array([max(len(tokens), 1) for tokens in encode(texts)], dtype=np.int64)


def _load(path: str) -> list[Any]:
    with open_trace(path) as file:
        try:
            conversations = json.load(file)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{path}: not JSON: {error}") from None
    assert isinstance(conversations, list)  # the caller saw the bracket
    return conversations


def _exchanges(
    conversations: list[Any], sieve: RowSieve, max_turns: int | None, limit: int | None
) -> list[list[Exchange]]:
    """The exchanges of each usable conversation; stops when they hold `limit` requests."""
    kept: list[list[Exchange]] = []
    num_requests = 0
    malformed: list[tuple[int, str]] = []
    for number, conversation in enumerate(conversations, 1):
        if limit is not None and num_requests >= limit:
            break
        try:
            kept.append(_read_conversation(conversation)[:max_turns])
            num_requests += len(kept[-1])
        except _UnusableError as error:
            malformed.append((number, str(error)))
    sieve.start(np.empty(0, dtype=np.int64), malformed)
    sieve.finish()
    return kept


def _read_conversation(conversation: Any) -> list[Exchange]:
    messages = conversation.get("conversations") if isinstance(conversation, dict) else None
    if not isinstance(messages, list):
        raise _UnusableError("no list under 'conversations'")
    merged: list[tuple[bool, str]] = []  # successive messages of one speaker are joined, empty messages dropped
    for is_answer, text in map(_read_message, messages):
        if merged and text and merged[-1][0] == is_answer:
            merged[-1] = (is_answer, f"{merged[-1][1]}\n{text}")
        elif text:
            merged.append((is_answer, text))
    if merged and merged[0][0]:
        del merged[0]  # the public file cuts long conversations, so that some begin with an answer
    exchanges = [(user, answer) for (_, user), (_, answer) in zip(merged[::2], merged[1::2], strict=False)]
    if not exchanges:
        raise _UnusableError(_NO_EXCHANGE)
    return exchanges


def _read_message(message: Any) -> tuple[bool, str]:
    """Whether a message is an answer (a system message counts as the user's), and its text."""
    speaker, text = (message.get("from"), message.get("value")) if isinstance(message, dict) else (None, None)
    if speaker not in (*_PROMPT_SPEAKERS, *_ANSWER_SPEAKERS) or not isinstance(text, str):
        raise _UnusableError("a message without a known speaker in 'from' and text in 'value'")
    # JSON can hold halves of surrogate pairs, which no tokenizer accepts.
    return speaker in _ANSWER_SPEAKERS, text.strip().encode("utf-8", errors="replace").decode()


def _columns(conversations: list[list[Exchange]], count: TokenCounter) -> dict[str, npt.NDArray[np.int64]]:
    exchanges = [exchange for conversation in conversations for exchange in conversation]
    return conversation_columns(
        num_turns=np.array([len(conversation) for conversation in conversations]),
        new_tokens=count([user for user, _ in exchanges]),
        output_tokens=count([answer for _, answer in exchanges]),
    )
