"""The arguments of a call, one for each of its prompts, checked against the model."""

from __future__ import annotations

from collections import abc
from typing import Any

from engine.api.detokenizer import bad_word_tokens
from engine.api.prompts import Prompt, check_token_ids
from engine.json_file import ModelError
from engine.sampling_params import SamplingParams

Params = SamplingParams | abc.Sequence[SamplingParams] | None


def params_of(prompts: abc.Sequence[Prompt], params: Params, default: SamplingParams) -> list[SamplingParams]:
    """The sampling parameters of each prompt; raises ValueError."""
    if params is None or isinstance(params, SamplingParams):
        return [params or default] * len(prompts)
    params = list(params)
    if len(params) != len(prompts):
        raise ValueError(f"{len(params)} sampling_params for {len(prompts)} prompts; give one, or one for each")
    for i, each in enumerate(params):
        if not isinstance(each, SamplingParams):
            raise ValueError(f"sampling_params[{i}]: {each!r} is not a SamplingParams")
    return params


def check_params(params: SamplingParams, size: int, tokenizer: Any) -> list[list[int]]:
    """Check what depends on the model, with a vocabulary of `size` tokens; returns the token ids of the bad words.

    Raises:
        ValueError: the parameters do not fit the model.
        ModelError: they have texts, but there is no tokenizer.
    """
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
        check_token_ids(list(getattr(params, name) or ()), size, name)
    for name in ("logprobs", "prompt_logprobs"):
        if (getattr(params, name) or 0) > size:
            raise ValueError(f"{name}={getattr(params, name)} exceeds the vocabulary of {size} tokens")
    if tokenizer is None and (params.stop_strings or params.bad_words):
        raise ModelError("the model has no tokenizer, which stop strings and bad_words need")
    if params.stop_strings and not params.detokenize:
        raise ValueError("stop strings need detokenize=True")
    words = bad_word_tokens(tokenizer, params.bad_words)
    return [check_token_ids(tokens, size, f"bad_words ({word!r})") for word, tokens in words]


def priorities_of(priority: abc.Sequence[int] | None, num_prompts: int) -> list[int]:
    """A priority for each prompt; raises ValueError."""
    if priority is None:
        return [0] * num_prompts
    if not isinstance(priority, abc.Sequence) or any(type(each) is not int for each in priority):
        raise ValueError(f"priority={priority!r}: must be a list of integers, one for each prompt")
    priorities = list(priority)
    if len(priorities) != num_prompts:
        raise ValueError(f"{len(priorities)} priorities for {num_prompts} prompts; give one for each")
    return priorities
