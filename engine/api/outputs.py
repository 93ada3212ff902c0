"""What the engine returns for a prompt, in the shape of vLLM's `RequestOutput`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log probability of a token under the model, its rank among all tokens (from 1), and its text."""

    logprob: float
    rank: int
    decoded_token: str | None = None


TokenLogprobs = dict[int, Logprob]
"""Log probabilities at one position by token id: the token that is there first, then the most likely ones."""


@dataclass(frozen=True)
class CompletionOutput:
    """One output sequence of a request, as far as it is generated.

    Attributes:
        index: number of the sequence, from 0 to n - 1.
        text: the output tokens as text; empty if the model has no tokenizer or `detokenize` is False.
        token_ids: all output tokens so far.
        cumulative_logprob: sum of the log probabilities of the output tokens; None without `logprobs`.
        logprobs: for each output token; None if not asked for.
        finish_reason: why the sequence ended; None while it runs.
        stop_reason: the stop string or the token of `stop_token_ids` that ended it; None for all other ends.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True)
class RequestOutput:
    """What one request has generated so far.

    Attributes:
        request_id: number of the request as a string, counted from the engine's first.
        index: place of the request's prompt in the list of prompts.
        prompt: the prompt as text; None if it was given as token ids.
        prompt_token_ids: the prompt.
        prompt_logprobs: for each prompt token, None for the first; None if not asked for.
        outputs: the output sequences.
        finished: whether all of them have ended.
        num_cached_tokens: prompt tokens found in the prefix cache.
    """

    request_id: str
    index: int
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0

    def __getitem__(self, key: Literal["text", "token_ids"]) -> Any:
        """Text or tokens of the first output sequence, as nano-vllm's outputs are read."""
        return getattr(self.outputs[0], key)
