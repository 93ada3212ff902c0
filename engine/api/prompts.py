"""Prompts as users give them, as token ids that are checked before the engine gets any of them."""

from __future__ import annotations

import operator
from collections import abc
from dataclasses import dataclass
from typing import Any

from engine.core.sequence import RequestRefusedError
from engine.json_file import ModelError

PromptInput = str | abc.Sequence[int] | abc.Mapping[str, Any]
"""A text, token ids, `{"prompt": text}` or `{"prompt_token_ids": token ids}`."""
Prompts = PromptInput | abc.Sequence[PromptInput]
"""One prompt, or a list of prompts."""

_FORMS = "a text, a list of token ids, {'prompt': text} or {'prompt_token_ids': token ids}"


@dataclass(frozen=True)
class Prompt:
    """A prompt in tokens; `text` is None if it was given in tokens."""

    text: str | None
    token_ids: list[int]


def read_prompts(prompts: Prompts, tokenizer: Any, vocab_size: int, *, adds_special_tokens: bool) -> list[Prompt]:
    """The prompts in tokens; an error names the first bad prompt by its place in the list.

    Args:
        tokenizer: encodes texts; None if the model has none.
        adds_special_tokens: whether the tokenizer adds its special tokens, such as one for the beginning, to texts.

    Raises:
        RequestRefusedError: a prompt has another form or type, cannot be encoded, or has a token outside the
            vocabulary.
        ModelError: a prompt is a text but the model has no tokenizer.
    """
    read = []
    for i, prompt in enumerate(_as_list(prompts)):
        place = f"prompts[{i}]"
        text, tokens = _parts(prompt, place)
        if tokens is None:
            assert text is not None
            tokens = _encode(text, tokenizer, place, adds_special_tokens)
        read.append(Prompt(text, check_token_ids(tokens, vocab_size, place)))
    return read


def check_token_ids(tokens: Any, vocab_size: int, place: str) -> list[int]:
    """`tokens` as a list of Python integers; raises RequestRefusedError, beginning with `place`, for a bad token."""
    if isinstance(tokens, str | bytes | abc.Mapping) or not isinstance(tokens, abc.Iterable):
        raise RequestRefusedError(f"{place}: {_short(tokens)} is not a list of token ids")
    tokens = list(tokens)
    if set(map(type, tokens)) - {int}:
        tokens = [_integer(token, i, place) for i, token in enumerate(tokens)]
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        i = next(i for i, token in enumerate(tokens) if not 0 <= token < vocab_size)
        raise RequestRefusedError(
            f"{place}: token id {_short(tokens[i])} (number {i} of the list) is outside the vocabulary, "
            f"0 to {vocab_size - 1}"
        )
    return tokens


def _as_list(prompts: Any) -> list[Any]:
    """A list of prompts; one bare prompt becomes a list of one."""
    if isinstance(prompts, str | abc.Mapping):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, abc.Iterable):
        raise RequestRefusedError(f"prompts: {_short(prompts)} is neither a prompt nor a list of prompts")
    prompts = list(prompts)
    is_bare = bool(prompts) and prompts[0] is not None and not _is_prompt(prompts[0])
    return [prompts] if is_bare else prompts


def _is_prompt(value: Any) -> bool:
    """Whether the value has the form of a prompt. A number has not, nor has a number in an array or a tensor."""
    return isinstance(value, str | bytes | abc.Sized) and getattr(value, "ndim", 1) > 0


def _parts(prompt: Any, place: str) -> tuple[str | None, Any]:
    """Text and token ids of a prompt; at least one of them is given."""
    if isinstance(prompt, str):
        return prompt, None
    if not isinstance(prompt, abc.Mapping):
        if prompt is None or isinstance(prompt, bytes) or not isinstance(prompt, abc.Iterable):
            raise RequestRefusedError(f"{place}: {_short(prompt)} is not a prompt, which is {_FORMS}")
        return None, prompt
    unknown = set(prompt) - {"prompt", "prompt_token_ids"}
    text, tokens = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if unknown or (text is None and tokens is None) or not isinstance(text, str | None):
        raise RequestRefusedError(f"{place}: {_short(prompt)} is not a prompt, which is {_FORMS}")
    return text, tokens


def _encode(text: str, tokenizer: Any, place: str, adds_special_tokens: bool) -> Any:
    if tokenizer is None:
        raise ModelError(f"{place}: the model has no tokenizer: give prompts as token ids")
    try:
        return tokenizer.encode(text, add_special_tokens=adds_special_tokens)
    except (TypeError, ValueError) as error:  # for example half of a surrogate pair
        raise RequestRefusedError(f"{place}: the tokenizer cannot encode {_short(text)}: {error}") from None


def _integer(token: Any, index: int, place: str) -> int:
    try:
        if not isinstance(token, bool):
            return operator.index(token)
    except TypeError:
        pass
    raise RequestRefusedError(f"{place}: {_short(token)} (number {index} of the list) is not a token id")


def _short(value: object) -> str:
    """A value for an error message, in one line."""
    text = ascii(value) if isinstance(value, str) else " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def render(tokenizer: Any, conversation: Any, index: int, options: dict[str, Any]) -> str:
    """A conversation as text, by the chat template; raises ValueError, which names it by its index."""
    try:
        text: str = tokenizer.apply_chat_template(conversation, tokenize=False, **options)
    except Exception as error:  # templates raise errors of any type
        raise ValueError(f"messages[{index}]: {error}") from error
    return text
