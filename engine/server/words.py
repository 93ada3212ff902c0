"""A tokenizer for models that have none: each token is a word, so that texts and tokens turn into each other exactly.

Token 17 is the word ` t17`. Other words of a text are tokens, too, drawn from the hash of the word.
"""

from __future__ import annotations

import re
from collections import abc
from typing import Any
from zlib import crc32

_WORD = re.compile(r"t(\d+)")


class WordTokenizer:
    """Has the methods of a tokenizer of `transformers` that the engine calls."""

    eos_token_id = None
    added_tokens_decoder: dict[int, Any] = {}

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self._token(word) for word in text.split()]

    def word(self, token: int) -> str:
        """The text of a token."""
        return f" t{token}"

    def decode(self, token_ids: abc.Iterable[int], **options: Any) -> str:
        return "".join(map(self.word, token_ids))

    def apply_chat_template(self, messages: abc.Iterable[abc.Mapping[str, Any]], **options: Any) -> str:
        """The contents, one after the other."""
        return " ".join(content_text(message.get("content")) for message in messages)

    def _token(self, word: str) -> int:
        known = _WORD.fullmatch(word)
        if known and int(known[1]) < self._vocab_size:
            return int(known[1])
        return crc32(word.encode("utf-8", "surrogatepass")) % self._vocab_size


def content_text(content: Any) -> str:
    """The text of a message: of all its parts, where it has several."""
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
