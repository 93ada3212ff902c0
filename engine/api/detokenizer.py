"""Text of the tokens of a sequence while they come, such that what has been returned never changes."""

from __future__ import annotations

from collections import abc
from typing import Any

from engine.sampling_params import SamplingParams

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTEXT_SIZES = range(5, 9)  # tokens of the prompt; the first of four sizes that begins with a whole character
_CHUNK_TOKENS = 64  # that are decoded at once
# Tokens that are held back while the text ends in a replacement character. The four bytes of a character are in at most
# four tokens; the others allow for tokens that end one character and begin the next.
_MOST_HELD = 8


class Detokenizer:
    """Text of the output tokens of one sequence.

        window    | context | released | held |
                            `text` ends here ^

    A token can change how its neighbours are decoded: a character may be spread over several tokens, and some
    tokenizers strip the space before the first token. Therefore the tokens of a window are decoded together. Its first
    tokens are the context: tokens whose text is returned already, at first the last ones of the prompt. The text of the
    other tokens is what follows the context's text. Tokens are held back while the window's text ends in the middle of
    a character.

    Attributes:
        text: the text of all tokens so far, without those held back.
    """

    def __init__(self, tokenizer: Any, params: SamplingParams, prompt_token_ids: abc.Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._skips_special = params.skip_special_tokens
        keeps_spaces = params.skip_special_tokens or params.spaces_between_special_tokens
        self._joined_tokens = {} if keeps_spaces else _added_tokens(tokenizer)
        self.text = ""
        self._window: list[int] = []
        self._num_context = 0
        self._context_text = ""
        for size in _CONTEXT_SIZES:
            self._set_context(list(prompt_token_ids[-size:]))
            if _REPLACEMENT not in self._context_text:
                return
        self._set_context([])  # the prompt ends in the middle of a character

    def add(self, token_ids: abc.Sequence[int]) -> None:
        """Append the text of the next tokens, as far as later tokens cannot change it."""
        size = 1 if self._joined_tokens else _CHUNK_TOKENS
        for start in range(0, len(token_ids), size):
            chunk = token_ids[start : start + size]
            if self._joined_tokens and self._ends_in_added_token() and chunk[0] in self._joined_tokens:
                self.finish()
                self.text += self._joined_tokens[chunk[0]]
                self._set_context([chunk[0]])
            else:
                self._add(chunk)

    def finish(self) -> None:
        """Append the text of the tokens that are held back."""
        if len(self._window) > self._num_context:
            self._release(len(self._window), self._decode(self._window))

    def _add(self, token_ids: abc.Sequence[int]) -> None:
        self._window += token_ids
        first = max(self._num_context, len(self._window) - _MOST_HELD)
        for end in range(len(self._window), first, -1):
            text = self._decode(self._window[:end])
            if not text.endswith(_REPLACEMENT):
                self._release(end, text)
                return
        if first > self._num_context:  # these are not parts of a character: the model generated invalid bytes
            self._release(first, self._decode(self._window[:first]))

    def _release(self, end: int, text: str) -> None:
        """Append the text of the window's tokens up to `end`; `text` is that of the context and these tokens."""
        self.text += text[len(self._context_text) :]
        released = self._window[self._num_context : end]
        context_text = self._decode(released)
        if context_text or end > _CHUNK_TOKENS:
            self._window, self._num_context = self._window[self._num_context :], len(released)
            self._context_text = context_text
        else:  # skipped special tokens alone are no context
            self._num_context, self._context_text = end, text

    def _set_context(self, token_ids: list[int]) -> None:
        self._window, self._num_context = token_ids, len(token_ids)
        self._context_text = self._decode(token_ids)

    def _ends_in_added_token(self) -> bool:
        return bool(self.text) and self._window[-1] in self._joined_tokens

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            token_ids, skip_special_tokens=self._skips_special, clean_up_tokenization_spaces=False
        )
        return text


def _added_tokens(tokenizer: Any) -> dict[int, str]:
    """Texts of the tokens beside the tokenizer's own vocabulary, special tokens among them."""
    return {token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()}


class TokenTexts(dict[int, str]):
    """Text of each token alone, decoded when it is asked for first."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str:
        text: str = self._tokenizer.decode([token_id], clean_up_tokenization_spaces=False)
        self[token_id] = text
        return text


def bad_word_tokens(tokenizer: Any, bad_words: abc.Iterable[str]) -> list[tuple[str, list[int]]]:
    """Each bad word with its token ids at the beginning of a text, and again with those after a space if they differ.

    Words count as different, as in vLLM, if they have equally many tokens and another first one.

    Raises:
        ValueError: a bad word is nothing but spaces.
    """
    found = []
    for word in bad_words:
        plain, spaced = (tokenizer.encode(space + word.lstrip(), add_special_tokens=False) for space in ("", " "))
        if not plain:
            raise ValueError(f"bad_words: {word!r} has no tokens")
        found.append((word, plain))
        if len(plain) == len(spaced) and plain[0] != spaced[0]:
            found.append((word, spaced))
    return found
