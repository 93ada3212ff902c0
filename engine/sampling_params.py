"""How the tokens of one request are chosen, and when generation ends."""

from __future__ import annotations

import math
import numbers
from collections import abc
from dataclasses import dataclass, field
from typing import Any

_OFF = -1
_LEAST_TEMPERATURE = 1e-5  # vLLM's _SAMPLING_EPS; float32 has room for every logit divided by it
_LARGEST = 1e30  # float32 has room for it and its inverse
_EMPTY: dict[str, Any] = {"logit_bias": {}, "bad_words": (), "stop": (), "stop_token_ids": ()}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Names, defaults and meanings are those of vLLM's `SamplingParams`.

    Attributes:
        n: output sequences per prompt.
        max_tokens: most output tokens of a sequence; None allows as many as the model's limit leaves.
        min_tokens: before this many output tokens, neither stop tokens nor end-of-sequence tokens are sampled, and stop
            strings are not looked for.
        temperature: 0, or below 1e-5 as in vLLM, takes the most likely token.
        top_k: sample from the `top_k` most likely tokens only; 0 and -1 are off.
        top_p: sample from the most likely tokens that together have this probability; 1 is off.
        min_p: sample only from tokens with at least this share of the most likely token's probability; 0 is off.
        presence_penalty: subtracted from the logit of each token that is among the output.
        frequency_penalty: times the number of its occurrences in the output, subtracted from each token's logit.
        repetition_penalty: divides the positive and multiplies the negative logits of tokens in the prompt or output.
        logit_bias: added to the logits of these token ids.
        allowed_token_ids: sample from these tokens only; None allows all.
        bad_words: texts that are not generated: the last token of each is forbidden after the others.
        seed: requests with equal seeds and prompts get equal tokens; None derives a seed from the engine's and the
            request's id.
        stop: texts that end a sequence. The output ends before the text, unless `include_stop_str_in_output`.
        stop_token_ids: tokens that end a sequence; the token that ended it is the last one returned.
        include_stop_str_in_output: whether the output text includes the stop string that ended it.
        ignore_eos: do not end at the model's end-of-sequence tokens.
        logprobs: how many of the most likely tokens to return log probabilities of, beside the sampled token; None
            returns none at all, -1 all of the vocabulary. They are those of the model, before anything above.
        prompt_logprobs: the same for the tokens of the prompt; the request then reads nothing from the prefix cache.
        detokenize: whether to make text of the output.
        skip_special_tokens: whether the text leaves special tokens out.
        spaces_between_special_tokens: whether the text has spaces between special tokens.

    Raises:
        ValueError: a value has the wrong type or is out of range.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: abc.Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: abc.Sequence[int] | None = None
    bad_words: abc.Sequence[str] = ()
    seed: int | None = None
    stop: str | abc.Sequence[str] = ()
    stop_token_ids: abc.Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    def __post_init__(self) -> None:
        for name, empty in _EMPTY.items():
            if getattr(self, name) is None:  # the default of vLLM
                object.__setattr__(self, name, empty)
        self._check_types()
        checks = {
            "n": (self.n >= 1, "at least 1"),
            "max_tokens": (self.max_tokens is None or self.max_tokens >= 1, "at least 1, or None"),
            "min_tokens": (0 <= self.min_tokens <= (self.max_tokens or math.inf), "from 0 to max_tokens"),
            "temperature": (0 <= self.temperature < _LARGEST, "at least 0"),
            "top_k": (_OFF <= self.top_k < 2**31, "at least 0 (off)"),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]"),
            "min_p": (0 <= self.min_p <= 1, "in [0, 1]"),
            "presence_penalty": (-2 <= self.presence_penalty <= 2, "in [-2, 2]"),
            "frequency_penalty": (-2 <= self.frequency_penalty <= 2, "in [-2, 2]"),
            "repetition_penalty": (1 / _LARGEST < self.repetition_penalty < _LARGEST, "above 0"),
            "logit_bias": (all(abs(bias) < _LARGEST for bias in self.logit_bias.values()), "finite"),
            "allowed_token_ids": (
                self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
                "None or not empty",
            ),
            "bad_words": (all(self.bad_words), "texts that are not empty"),
            "stop": (all(self.stop_strings), "texts that are not empty"),
            "logprobs": (self.logprobs is None or self.logprobs >= _OFF, "None, -1 (all) or at least 0"),
            "prompt_logprobs": (self.prompt_logprobs is None or self.prompt_logprobs >= _OFF, "None, -1 or at least 0"),
        }
        for name, (is_valid, allowed) in checks.items():
            if not is_valid:
                raise ValueError(f"{name}={getattr(self, name)!r} must be {allowed}")

    def _check_types(self) -> None:
        for name, (is_valid, allowed) in _TYPES.items():
            if not is_valid(getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)!r} must be {allowed}")

    @property
    def sampling_temperature(self) -> float:
        """`temperature`, or 0 where it is too small to divide by."""
        return self.temperature if self.temperature >= _LEAST_TEMPERATURE else 0.0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) and self.stop else tuple(self.stop)


def _is_integer(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_integer_or_none(value: object) -> bool:
    return value is None or _is_integer(value)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, abc.Collection) and not isinstance(value, str | bytes | abc.Mapping)


def _are_texts(value: object) -> bool:
    return _is_list(value) and all(isinstance(each, str) for each in value)  # type: ignore[attr-defined]


_TYPES: dict[str, tuple[abc.Callable[[Any], bool], str]] = {
    **dict.fromkeys(("n", "min_tokens", "top_k"), (_is_integer, "an integer")),
    **dict.fromkeys(("max_tokens", "seed", "logprobs", "prompt_logprobs"), (_is_integer_or_none, "an integer or None")),
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        (_is_number, "a number"),
    ),
    "logit_bias": (
        lambda value: isinstance(value, abc.Mapping) and all(map(_is_number, value.values())),
        "a dict of numbers by token id",
    ),
    "allowed_token_ids": (lambda value: value is None or _is_list(value), "None or a list of token ids"),
    "stop_token_ids": (_is_list, "a list of token ids"),
    "bad_words": (_are_texts, "a list of texts"),
    "stop": (lambda value: isinstance(value, str) or _are_texts(value), "a text or a list of texts"),
}
