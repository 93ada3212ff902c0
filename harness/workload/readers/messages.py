"""Requests as OpenAI's chat API takes them: the tokens of their messages are counted by a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.config.schema.traffic.trace_files import MESSAGES
from harness.errors import ConfigError
from harness.workload.rows.sieve import RowSieve
from harness.workload.rows.tabular import Columns
from harness.workload.rows.trace_files import JsonBatch
from harness.workload.text_tokens import Encode, load_tokenizer

_ANSWER = "assistant"
_COUNTED = ("num_prompt_tokens", "token_ids")


class MessageCounter:
    """Makes token ids of the texts of messages; those of a last message of the assistant are the answer.

    Args:
        names: the name in the file of each column of ours that it has, `messages` among them.
        encode: the tokenizer.
    """

    notes = ("message texts only: the tokens of a chat template are not counted",)

    def __init__(self, names: Mapping[str, str], encode: Encode) -> None:
        self._name = names[MESSAGES]
        self._counts_answers = "num_output_tokens" not in names
        self._encode = encode
        self._tokens: dict[str, list[int]] = {}  # of texts of the last batch, which turns of a conversation repeat

    @classmethod
    def for_file(cls, path: str, names: Mapping[str, str], tokenizer: str | None) -> MessageCounter | None:
        """The counter of a file with these columns; None for one without messages.

        Raises:
            ConfigError: messages and a tokenizer are not both there, or messages stand beside what they say.
        """
        if MESSAGES not in names:
            if tokenizer is not None:
                raise ConfigError(f"trace.tokenizer={tokenizer!r}: {path} holds lengths, no messages; leave it out")
            return None
        if said := next((column for column in _COUNTED if column in names), None):
            raise ConfigError(
                f"{path}: has {names[said]} beside {names[MESSAGES]}, which say it; leave out one of them"
            )
        if tokenizer is None:
            raise ConfigError(
                f"{path}: set trace.tokenizer=<folder of the model, or its tokenizer.json> to count the tokens of "
                f"{names[MESSAGES]}"
            )
        return cls(names, load_tokenizer(tokenizer))

    def columns(self, batch: JsonBatch, sieve: RowSieve) -> Columns:
        """The columns that the messages say: token_ids and num_prompt_tokens, and num_output_tokens if no column has
        it."""
        rows = [_texts(value) for value in batch.column(self._name)]
        sieve.reject(_mask(row is None for row in rows), f"{self._name} is no list of messages with a role and text")
        prompts, answers = zip(*(row or ([], None) for row in rows), strict=True) if rows else ((), ())
        texts = {text for prompt in prompts for text in prompt} | {text for text in answers if text is not None}
        new = sorted(texts - self._tokens.keys())
        self._tokens = {text: ids for text, ids in self._tokens.items() if text in texts}
        self._tokens |= dict(zip(new, self._encode(new), strict=True))
        ids = [np.array([token for text in prompt for token in self._tokens[text]], np.int32) for prompt in prompts]
        lengths = np.array([len(each) for each in ids], dtype=np.int64)
        sieve.reject(lengths == 0, f"{self._name} hold no text")
        columns: Columns = {"token_ids": np.fromiter(ids, dtype=object, count=len(ids)), "num_prompt_tokens": lengths}
        if self._counts_answers:
            outputs = [len(self._tokens[text]) if text is not None else 0 for text in answers]
            columns["num_output_tokens"] = np.array(outputs, dtype=np.int64)
            sieve.reject(
                columns["num_output_tokens"] == 0, "no answer at the end of the messages, and no number of tokens"
            )
        return columns


def texts_of(messages: object) -> list[str] | None:
    """The texts of all messages; None for no messages."""
    texts = _texts(messages)
    return None if texts is None else [*texts[0], *([] if texts[1] is None else [texts[1]])]


def _texts(value: object) -> tuple[list[str], str | None] | None:
    """The texts of the prompt and that of the answer, if the last message is one; None for no messages."""
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        return None
    contents = [_content(message.get("content")) for message in value]
    if any(content is None for content in contents) or not all(isinstance(each.get("role"), str) for each in value):
        return None
    texts = [content for content in contents if content is not None]
    return (texts[:-1], texts[-1]) if value[-1]["role"] == _ANSWER else (texts, None)


def _content(content: Any) -> str | None:
    """The text of a message: a text, the texts of its parts, or none at all, as beside calls of tools."""
    if content is None or isinstance(content, str):
        return _encodable(content or "")
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return None
    parts = [part.get("text") for part in content if part.get("type") == "text"]
    return _encodable("".join(parts)) if all(isinstance(part, str) for part in parts) else None


def _encodable(text: str) -> str:
    """JSON can hold halves of surrogate pairs, which no tokenizer accepts."""
    return text.encode("utf-8", errors="replace").decode()


def _mask(values: Any) -> np.typing.NDArray[np.bool_]:
    return np.array(list(values), dtype=bool)
