"""The sampling parameters of a plan's rows, and edits of the logits of rows that need more than these.

Rows are numbered as the runner samples them: the samples of completed prompts, then the decode rows. A sequence is
*adjusted* while its next token takes more than temperature, top-k, top-p and a seed. The edits depend on all tokens
before the sampled one, so a plan that samples an adjusted sequence has one step.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.core.plan import PrefillChunk
from engine.core.sequence import Sequence
from engine.sampling_params import SamplingParams
from kernels.sampling.logit_edits import LogitEdits

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Array: TypeAlias = Any  # a numpy array on the host, a tensor on the device
TokenLists = abc.Sequence[abc.Sequence[int]]

_ALL = 1 << 62  # more tokens than a vocabulary has


@dataclass(frozen=True)
class SamplingInputs:
    """Sampling parameters of n rows: temperature and top_p float32[n], top_k int32[n], seeds int64[n]."""

    temperature: Array
    top_k: Array
    top_p: Array
    seeds: Array

    @classmethod
    def of(cls, requests: abc.Iterable[tuple[SamplingParams, int]]) -> SamplingInputs:
        """The arrays for a list of (sampling parameters, seed)."""
        rows = [(p.sampling_temperature, p.top_k, p.top_p, seed) for p, seed in requests]
        temperature, top_k, top_p, seeds = zip(*rows, strict=True) if rows else ((), (), (), ())
        return cls(
            np.asarray(temperature, np.float32),
            np.asarray(top_k, np.int32),
            np.asarray(top_p, np.float32),
            np.asarray(seeds, np.int64),
        )


@dataclass(frozen=True)
class Adjustments:
    """What a plan does for its adjusted sequences.

    Attributes:
        edits: changes of the logits.
        logprob_rows: int64[r], rows whose sampled token and most likely tokens get log probabilities.
        num_logprobs: how many of the most likely tokens, the most of all rows.
        prompt_rows: int64[q], places of prompt tokens among the tokens of the chunks.
        prompt_tokens: int64[q], the tokens that follow them in their prompts, which get log probabilities.
        num_prompt_logprobs: how many of the most likely tokens to return beside them, the most of all.
    """

    edits: LogitEdits
    logprob_rows: Array
    num_logprobs: int
    prompt_rows: Array
    prompt_tokens: Array
    num_prompt_logprobs: int


class AdjustedSequence:
    """A sequence whose next tokens take more than temperature, top-k, top-p and a seed.

    Args:
        sequence: its `token_ids` hold all tokens before the one to sample.
        params: its sampling parameters.
        end_tokens: tokens that are forbidden before `min_tokens` output tokens.
        bad_words: lists of tokens; the last token of each is forbidden when the output ends with the others.
    """

    def __init__(
        self, sequence: Sequence, params: SamplingParams, end_tokens: abc.Iterable[int], bad_words: TokenLists
    ) -> None:
        self.params = params
        self.end_tokens = sorted(end_tokens)
        self.bad_words = [list(word) for word in bad_words]
        self.num_prompt_logprobs = 0  # prompt tokens, after the first, whose log probabilities were asked for
        self._sequence = sequence
        self._counts: _TokenCounts | None = None
        self._is_always_adjusted = needs_adjusting(params, bad_words)

    @property
    def output(self) -> list[int]:
        tokens = self._sequence.token_ids
        assert tokens is not None
        return tokens[self._sequence.request.num_prompt_tokens :]

    @property
    def is_adjusted(self) -> bool:
        """Whether the next token takes edits or log probabilities."""
        return self._is_always_adjusted or self._sequence.num_output_tokens < self.params.min_tokens

    @property
    def reads_output(self) -> bool:
        """Whether the edits of the next token depend on the output before it, not only on its length."""
        return _has_penalties(self.params) or any(len(word) > 1 for word in self.bad_words)

    def forbidden(self) -> list[int]:
        """Tokens that may not be next."""
        tokens = self.end_tokens if self._sequence.num_output_tokens < self.params.min_tokens else []
        if not self.bad_words:
            return tokens
        output = self.output
        ended = (word[-1] for word in self.bad_words if len(word) == 1 or output[1 - len(word) :] == word[:-1])
        return sorted({*tokens, *ended})

    def penalties(self) -> tuple[Ints, Floats]:
        """Tokens that are penalised, int64[p], and their columns of `LogitEdits.penalties`, float32[3, p]."""
        params, sequence = self.params, self._sequence
        if self._counts is None:
            penalises_prompt = params.repetition_penalty != 1
            prompt = self._sequence.token_ids[: sequence.request.num_prompt_tokens] if penalises_prompt else []  # type: ignore[index]
            self._counts = _TokenCounts(prompt)
        tokens, counts = self._counts.after(self.output)
        penalties = np.empty((3, len(tokens)), np.float32)
        penalties[0] = params.repetition_penalty
        penalties[1] = np.float32(params.frequency_penalty) * counts
        penalties[2] = np.float32(params.presence_penalty) * (counts > 0)
        return tokens, penalties

    def prompt_targets(self, chunk: PrefillChunk) -> range:
        """Positions of prompt tokens that get their log probabilities from `chunk`: each position only once."""
        if self.params.prompt_logprobs is None:
            return range(0)
        first = max(chunk.start, self.num_prompt_logprobs) + 1
        last = min(chunk.start + chunk.num_tokens, self._sequence.request.num_prompt_tokens - 1)
        return range(first, last + 1)


class _TokenCounts:
    """The distinct tokens of a sequence, and how often each is among its output; keeps up with the output."""

    def __init__(self, prompt: abc.Iterable[int]) -> None:
        self._places = {token: i for i, token in enumerate(dict.fromkeys(prompt))}
        self._tokens = np.fromiter(self._places, np.int64, len(self._places))
        self._counts = np.zeros(len(self._places), np.int64)
        self._num_counted = 0

    def after(self, output: list[int]) -> tuple[Ints, Ints]:
        """The tokens and their counts, both int64[n], given the output, which only grows from call to call."""
        for token in output[self._num_counted :]:
            place = self._places.get(token)
            if place is None:
                place = self._places[token] = len(self._places)
                if place == len(self._tokens):
                    self._tokens = np.resize(self._tokens, 2 * place + 16)
                    self._counts = np.resize(self._counts, 2 * place + 16)
                self._tokens[place], self._counts[place] = token, 0
            self._counts[place] += 1
        self._num_counted = len(output)
        n = len(self._places)
        return self._tokens[:n], self._counts[:n]


def needs_adjusting(params: SamplingParams, bad_words: TokenLists = ()) -> bool:
    """Whether every token of a sequence with these parameters takes edits or log probabilities."""
    return bool(
        params.logprobs is not None
        or params.min_p
        or params.logit_bias
        or params.allowed_token_ids is not None
        or bad_words
        or _has_penalties(params)
    )


def _has_penalties(params: SamplingParams) -> bool:
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1)


def make_adjustments(
    rows: abc.Sequence[AdjustedSequence | None], chunks: abc.Iterable[tuple[AdjustedSequence | None, PrefillChunk]]
) -> Adjustments | None:
    """The adjustments of a plan; None if it needs none.

    Args:
        rows: for each row that is sampled, its sequence if that is adjusted.
        chunks: the plan's prompt chunks, each with its sequence if that may be adjusted.
    """
    adjusted = [(row, each) for row, each in enumerate(rows) if each is not None]
    prompt_rows, prompt_tokens, num_prompt_logprobs = _prompt_targets(chunks)
    if not adjusted and not len(prompt_rows):
        return None
    wanted = [(row, each.params.logprobs) for row, each in adjusted if each.params.logprobs is not None]
    return Adjustments(
        edits=_edits(adjusted),
        logprob_rows=np.asarray([row for row, _ in wanted], np.int64),
        num_logprobs=_most(number for _, number in wanted),
        prompt_rows=prompt_rows,
        prompt_tokens=prompt_tokens,
        num_prompt_logprobs=num_prompt_logprobs,
    )


def _prompt_targets(chunks: abc.Iterable[tuple[AdjustedSequence | None, PrefillChunk]]) -> tuple[Ints, Ints, int]:
    """The last three fields of `Adjustments`; notes in the sequences what is asked for."""
    rows: list[int] = []
    tokens: list[int] = []
    numbers, start = [0], 0
    for each, chunk in chunks:
        targets = range(0) if each is None else each.prompt_targets(chunk)
        if each is not None and targets:
            rows += range(start + targets.start - 1 - chunk.start, start + targets.stop - 1 - chunk.start)
            tokens += chunk.sequence.token_ids[targets.start : targets.stop]  # type: ignore[index]
            each.num_prompt_logprobs = targets.stop - 1
            numbers.append(each.params.prompt_logprobs or 0)
        start += chunk.num_tokens
    return np.asarray(rows, np.int64), np.asarray(tokens, np.int64), _most(numbers)


def _most(numbers: abc.Iterable[int]) -> int:
    """The largest of some numbers of tokens, where -1 stands for all tokens."""
    return max((_ALL if number < 0 else number for number in numbers), default=0)


def _edits(adjusted: abc.Sequence[tuple[int, AdjustedSequence]]) -> LogitEdits:
    """The edits of adjusted rows."""
    allowed = [(row, each.params.allowed_token_ids) for row, each in adjusted if each.params.allowed_token_ids]
    biased = [(row, each.params.logit_bias) for row, each in adjusted if each.params.logit_bias]
    penalised = [(row, *each.penalties()) for row, each in adjusted if _has_penalties(each.params)]
    drawn = [(row, each.params) for row, each in adjusted if each.params.sampling_temperature]
    min_p = [(row, params.min_p) for row, params in drawn if params.min_p]
    return LogitEdits(
        allowed_rows=np.asarray([row for row, _ in allowed], np.int64),
        allowed=_pairs(allowed),
        forbidden=_pairs([(row, each.forbidden()) for row, each in adjusted]),
        biased=_pairs([(row, list(bias)) for row, bias in biased]),
        biases=np.asarray([value for _, bias in biased for value in bias.values()], np.float32),
        penalised=_pairs([(row, tokens) for row, tokens, _ in penalised]),
        penalties=np.concatenate([np.zeros((3, 0), np.float32), *(values for _, _, values in penalised)], axis=1),
        min_p_rows=np.asarray([row for row, _ in min_p], np.int64),
        min_p=np.asarray([value for _, value in min_p], np.float32),
    )


def _pairs(entries: abc.Iterable[tuple[int, abc.Sequence[int] | Ints]]) -> Ints:
    """(row, token) for every token of every row, as the columns of an int64 array."""
    columns = [np.zeros((2, 0), np.int64)]
    for row, tokens in entries:
        column = np.empty((2, len(tokens)), np.int64)
        column[0], column[1] = row, tokens
        columns.append(column)
    return np.concatenate(columns, axis=1)
