"""From the tokens that a plan sampled to the sequences they belong to: where they end, and their log probabilities."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import NamedTuple

from engine.core.plan import StepPlan
from engine.core.sequence import Sequence
from engine.outputs import FinishReason, Logprob, TokenLogprobs
from engine.runner.model_runner import StepTokens
from engine.runner.step_inputs import StepBuilder
from engine.sampling_params import SamplingParams
from kernels.logit_edits import RowLogprobs

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
    """What ends the sequences of a request: any of `tokens`, which hold `eos`, and what `check` says."""

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
        builder: knows the rows of the sequences.
        advance: `Scheduler.advance`.
    """

    def __init__(self, builder: StepBuilder, advance: abc.Callable[[StepPlan], None]) -> None:
        self._builder = builder
        self._advance = advance
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

    def collect(self, plan: StepPlan, tokens: StepTokens) -> tuple[list[NewTokens], dict[Sequence, int]]:
        """Append the plan's tokens to their sequences, each up to and including the first that ends it.

        Where the plan completes the prompt of a request of several sequences, the others are forked now.

        Returns:
            The appended tokens by sequence; and for each sequence that met a stop condition, how many of the plan's
            tokens came after it and were dropped.
        """
        self._stopped = {}
        decoding = self._builder.sequences if plan.num_decodes else []
        prompts = [chunk.sequence for chunk in plan.prefills if chunk.is_last]
        samples = [chunk.sequence for chunk in plan.prefills for _ in range(chunk.num_samples)]
        logprobs = self._logprobs([*samples, *decoding], tokens) if tokens.logprobs is not None else {}
        if tokens.prompt_logprobs is not None:
            self._note_prompts(plan, tokens.prompt_logprobs)
        first = len(samples)
        outputs = [
            self._give(sequence, new, logprobs.get(row))
            for row, (sequence, new) in enumerate(zip(decoding, tokens.decode.T.tolist(), strict=True), first)
        ]
        if prompts:
            outputs += self._give_first(plan, prompts, tokens.prefill.tolist(), logprobs)
        return outputs, self._stopped

    def _give_first(
        self, plan: StepPlan, prompts: list[Sequence], tokens: list[int], logprobs: dict[int, TokenLogprobs]
    ) -> list[NewTokens]:
        """Give the samples of completed prompts to their sequences, and fork those that are to be forked."""
        outputs, forking, row = [], [], 0
        for sequence in prompts:
            prompt_logprobs = self._prompt_logprobs.pop(sequence, None)
            outputs.append(self._give(sequence, [tokens[row]], logprobs.get(row), prompt_logprobs))
            if sequence.num_forks:
                forking.append((sequence, row + 1))
            row += 1 + sequence.num_forks
        if forking:
            self._advance(plan)
        for sequence, row in forking:
            forks = sequence.request.sequences[1:]
            self._builder.add_forks(sequence, forks)
            for i, fork in enumerate(forks, row):
                self._follow(sequence, fork)
                outputs.append(self._give(fork, [tokens[i]], logprobs.get(i)))
        return outputs

    def _follow(self, sequence: Sequence, fork: Sequence) -> None:
        """Register a fork of `sequence`, and take back the token that it was forked with."""
        assert fork.token_ids is not None
        fork.token_ids.pop()
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

    def _logprobs(self, rows: list[Sequence], tokens: StepTokens) -> dict[int, TokenLogprobs]:
        """Log probabilities by row, for the rows of sequences that want some."""
        wanted = [(row, self._num_logprobs[each]) for row, each in enumerate(rows) if each in self._num_logprobs]
        sampled = [*tokens.prefill.tolist(), *tokens.decode[:1].ravel().tolist()]
        assert tokens.logprobs is not None
        return {row: _at(tokens.logprobs, i, sampled[row], number) for i, (row, number) in enumerate(wanted)}

    def _note_prompts(self, plan: StepPlan, logprobs: RowLogprobs) -> None:
        """Keep the log probabilities of prompt tokens until their prompt is computed."""
        i = 0
        for chunk in plan.prefills:
            found = self._prompt_logprobs.get(chunk.sequence)
            if found is None:
                continue
            number = self._num_prompt_logprobs[chunk.sequence]
            while len(found) <= self._builder.num_prompt_logprobs(chunk.sequence):
                found.append(_at(logprobs, i, chunk.sequence.token_ids[len(found)], number))  # type: ignore[index]
                i += 1


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
