"""Appends the tokens that a plan sampled to their sequences, and finds which of them end, and log probabilities."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import NamedTuple

from engine.api.outputs import FinishReason, Logprob, TokenLogprobs
from engine.core.flight import Verified
from engine.core.plan import StepPlan
from engine.core.sequence import Sequence
from engine.runner.inputs.plan_samples import PlanSamples
from engine.runner.inputs.step_inputs import StepBuilder
from engine.runner.step_tokens import StepTokens
from engine.sampling_params import SamplingParams
from kernels.sampling.logit_edits import RowLogprobs

EndCheck = abc.Callable[[Sequence, int], str | None]
"""Called with a sequence and its newest token, after that is in `token_ids`: returns the stop string that it completes.

It is called for each new token of a sequence in order, except for the first `min_tokens` ones and for stop tokens.
"""


class NewTokens(NamedTuple):
    """The tokens that a plan gave to a sequence.

    Attributes:
        finish_reason: None while the sequence runs.
        stop_reason: the token of `stop_token_ids` or the stop string that ended the sequence, if one did.
        logprobs: for each token; None if the request asks for none.
        prompt_logprobs: for each prompt token, None for the first; comes with the first tokens of a request's first
            sequence, if the request asks for them.
    """

    sequence: Sequence
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None


@dataclass(frozen=True)
class _Ends:
    """The stop conditions of a request: `tokens`, `eos` among them, and the stop strings that `check` finds."""

    tokens: frozenset[int]
    eos: frozenset[int]
    check: EndCheck | None
    min_tokens: int

    def append(self, sequence: Sequence, tokens: list[int]) -> tuple[int, int | str | None] | None:
        """Append tokens up to and including the first that ends the sequence.

        Returns:
            The number of tokens appended and the stop reason; None if no token ends the sequence.
        """
        known = sequence.token_ids
        assert known is not None
        num_free = sequence.request.num_prompt_tokens + self.min_tokens - len(known)
        for number, token in enumerate(tokens, 1):
            known.append(token)
            if number <= num_free:
                continue
            if token in self.tokens:
                return number, None if token in self.eos else token
            if self.check is not None and (text := self.check(sequence, token)) is not None:
                return number, text
        return None


class TokenCollector:
    """Appends sampled tokens to their sequences.

    Args:
        builder: knows the sequences that have neither ended nor been aborted.
        advance: `Scheduler.advance`.
        speculates: whether plans may have drafts.
    """

    def __init__(
        self,
        builder: StepBuilder,
        advance: abc.Callable[[StepPlan, Verified | None], None],
        *,
        speculates: bool,
    ) -> None:
        self._builder = builder
        self._advance = advance
        self._speculates = speculates
        self._ends: dict[Sequence, _Ends] = {}
        self._num_logprobs: dict[Sequence, int] = {}
        self._num_prompt_logprobs: dict[Sequence, int] = {}
        self._prompt_logprobs: dict[Sequence, list[TokenLogprobs | None]] = {}
        self._stopped: dict[Sequence, int] = {}

    def add(self, sequence: Sequence, params: SamplingParams, eos: frozenset[int], check: EndCheck | None) -> None:
        """Register the first sequence of a request; `eos` are the end-of-sequence tokens that end it."""
        stops = eos | frozenset(params.stop_token_ids)
        if stops or check is not None:
            self._ends[sequence] = _Ends(stops, eos, check, params.min_tokens)
        if params.logprobs is not None:
            self._num_logprobs[sequence] = params.logprobs
        if params.prompt_logprobs is not None:
            self._num_prompt_logprobs[sequence] = params.prompt_logprobs
            self._prompt_logprobs[sequence] = [None]

    def drop(self, sequences: abc.Iterable[Sequence]) -> None:
        """Forget sequences that ended or were aborted."""
        tables: tuple[dict[Sequence, object], ...]
        tables = (self._ends, self._num_logprobs, self._num_prompt_logprobs, self._prompt_logprobs)  # type: ignore[assignment]
        for sequence in sequences:
            for table in tables:
                table.pop(sequence, None)

    def collect(
        self, plan: StepPlan, samples: PlanSamples, tokens: StepTokens
    ) -> tuple[list[NewTokens], dict[Sequence, int], Verified | None]:
        """Append the plan's tokens to their sequences, each up to and including the first that ends it.

        Tokens of sequences that have ended or were aborted since the plan was made are dropped. Where the plan
        completes the prompt of a request of several sequences, the others are forked now, if they are not yet.

        Returns:
            The appended tokens by sequence; for each sequence that met a stop condition, how many of the plan's tokens
            came after it and were dropped; and what became of drafts, None without speculation.
        """
        self._stopped = {}
        logprobs = self._logprobs(samples, tokens)
        if tokens.prompt_logprobs is not None:
            self._note_prompts(samples, tokens.prompt_logprobs)
        decoded = _decoded(samples, tokens)
        verified = None
        if self._speculates:
            num_drafted = sum(len(drafts) for _, drafts in samples.drafted)
            verified = Verified(num_drafted, {sequence: len(new) for _, sequence, new in decoded})
        has = self._builder.has
        outputs = [self._give(sequence, new, logprobs.get(row)) for row, sequence, new in decoded if has(sequence)]
        if samples.prompts:
            if any(sequence.num_forks for sequence, _ in samples.prompts):
                self._advance(plan, verified)
                self.add_forks(samples)
            outputs += self._give_first(samples, tokens.prefill.tolist(), logprobs)
        return outputs, self._stopped, verified

    def add_forks(self, samples: PlanSamples) -> None:
        """Register the sequences that were forked from those whose prompt a plan completes."""
        for sequence, count in samples.prompts:
            if count > 1 and self._builder.has(sequence):
                forks = sequence.request.sequences[1:]
                self._builder.add_forks(sequence, forks)
                for fork in forks:
                    self._follow(sequence, fork)

    def _give_first(
        self, samples: PlanSamples, tokens: list[int], logprobs: dict[int, TokenLogprobs]
    ) -> list[NewTokens]:
        """Give the samples of completed prompts to their sequences: to the first of each request, then to its forks."""
        outputs, forks, row = [], [], 0
        for sequence, count in samples.prompts:
            if self._builder.has(sequence):
                prompt_logprobs = self._prompt_logprobs.pop(sequence, None)
                outputs.append(self._give(sequence, [tokens[row]], logprobs.get(row), prompt_logprobs))
            if count > 1:
                forks += [(row + i, fork) for i, fork in enumerate(sequence.request.sequences[1:], 1)]
            row += count
        has = self._builder.has
        return outputs + [self._give(fork, [tokens[row]], logprobs.get(row)) for row, fork in forks if has(fork)]

    def _follow(self, sequence: Sequence, fork: Sequence) -> None:
        """Register a fork of `sequence`."""
        if sequence in self._ends:
            self._ends[fork] = self._ends[sequence]
        if sequence in self._num_logprobs:
            self._num_logprobs[fork] = self._num_logprobs[sequence]

    def _give(
        self,
        sequence: Sequence,
        tokens: list[int],
        logprobs: TokenLogprobs | None = None,
        prompt_logprobs: list[TokenLogprobs | None] | None = None,
    ) -> NewTokens:
        """Append tokens to a sequence; `logprobs` belong to the one token of a plan of one step."""
        ends, reason = self._ends.get(sequence), None
        if ends is None:
            assert sequence.token_ids is not None
            sequence.token_ids.extend(tokens)
        elif (end := ends.append(sequence, tokens)) is not None:
            number, reason = end
            self._stopped[sequence] = len(tokens) - number
            tokens = tokens[:number]
        return NewTokens(sequence, tokens, None, reason, None if logprobs is None else [logprobs], prompt_logprobs)

    def _logprobs(self, samples: PlanSamples, tokens: StepTokens) -> dict[int, TokenLogprobs]:
        """Log probabilities by sample, for the samples of sequences that want some."""
        if tokens.logprobs is None:
            return {}
        numbers, sampled = self._num_logprobs, [*tokens.prefill.tolist(), *tokens.decode[:1].ravel().tolist()]
        return {
            row: _at(tokens.logprobs, i, sampled[row], numbers[sequence])
            for i, (row, sequence) in enumerate(samples.logprobs)
            if sequence in numbers
        }

    def _note_prompts(self, samples: PlanSamples, logprobs: RowLogprobs) -> None:
        """Keep the log probabilities of prompt tokens until their prompt is computed."""
        first = 0
        for sequence, count in samples.prompt_logprobs:
            found = self._prompt_logprobs.get(sequence)
            if found is not None:
                number = self._num_prompt_logprobs[sequence]
                for i in range(first, first + count):
                    found.append(_at(logprobs, i, sequence.token_ids[len(found)], number))  # type: ignore[index]
            first += count


def _decoded(samples: PlanSamples, tokens: StepTokens) -> list[tuple[int, Sequence, list[int]]]:
    """The decodes with their new tokens, and the number of the first sample of each.

    Of a decode with drafts, the sampled tokens count up to and including the first that is not the draft there.
    """
    row = samples.num_prompt_samples
    if not samples.drafted:
        decoding = samples.decodes
        return list(zip(range(row, row + len(decoding)), decoding, tokens.decode.T.tolist(), strict=True))
    decoded, sampled = [], tokens.prefill.tolist()
    for sequence, drafts in samples.drafted:
        new = sampled[row : row + 1 + len(drafts)]
        num_accepted = next((i for i, draft in enumerate(drafts) if draft != new[i]), len(drafts))
        decoded.append((row, sequence, new[: num_accepted + 1]))
        row += len(new)
    return decoded


def _at(logprobs: RowLogprobs, i: int, token: int, number: int) -> TokenLogprobs:
    """Log probabilities of a token, and of the `number` most likely ones (-1: all), in row `i`.

    The rank of a token among the most likely ones is its place there, also where others are equally likely.
    """
    found = {token: Logprob(float(logprobs.chosen[i]), int(logprobs.ranks[i]))}
    ids, values = logprobs.top_ids[i], logprobs.top[i]
    if number >= 0:
        ids, values = ids[:number], values[:number]
    for rank, (each, value) in enumerate(zip(ids.tolist(), values.tolist(), strict=True), 1):
        found[each] = Logprob(value, rank)
    return found
