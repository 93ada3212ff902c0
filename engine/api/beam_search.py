"""Beam search as vLLM's offline API has it: parameters, results, and the choice of tokens after each step.

Every live beam gives its `2 * beam_width` most likely next tokens. Of all these continuations those with an
end-of-sequence token are completed, and the `beam_width` best others are the next live beams. When `max_tokens` tokens
are generated, the best of the completed and the live ones are returned, by

    cumulative log probability / (tokens without an end-of-sequence token) ** length_penalty

where the tokens include those of the prompt, as in vLLM.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.api.outputs import FinishReason, TokenLogprobs
from engine.api.prompts import Prompt
from engine.api.token_collector import NewTokens
from engine.core.running.beams import in_place
from engine.core.sequence import Request, Sequence
from engine.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """Names and meanings are those of vLLM's `BeamSearchParams`.

    Attributes:
        beam_width: live beams, and hypotheses that are returned.
        max_tokens: output tokens of a hypothesis that does not end before.
        ignore_eos: end-of-sequence tokens are tokens like all others.
        length_penalty: above 0, exponent of the length that a score is divided by: the larger, the longer the best
            hypotheses.

    Raises:
        ValueError: a value has the wrong type or is out of range.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r} must be an integer of at least 1")
        if not isinstance(self.length_penalty, int | float) or not abs(self.length_penalty) < 1e3:
            raise ValueError(f"length_penalty={self.length_penalty!r} must be a number")


@dataclass
class BeamSearchSequence:
    """A hypothesis.

    Attributes:
        tokens: prompt and output, an end-of-sequence token included.
        logprobs: of each output token and its alternatives.
        cum_logprob: sum over the output tokens.
        text: of all tokens; None if the model has no tokenizer.
        finish_reason: "stop" if it ended with an end-of-sequence token, which is `stop_reason`; else "length".
    """

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass
class BeamSearchOutput:
    """The best hypotheses for a prompt, the best first."""

    sequences: list[BeamSearchSequence]


class _Step(NamedTuple):
    """The last token of a beam, whose earlier ones are those of `before`."""

    before: _Step | None
    token: int
    logprobs: TokenLogprobs
    cum_logprob: float

    def tokens(self) -> list[int]:
        return [step.token for step in self.steps()]

    def steps(self) -> list[_Step]:
        found, step = [], self if self.before is not None else None
        while step is not None and step.before is not None:
            found.append(step)
            step = step.before
        return found[::-1]


_START = _Step(None, -1, {}, 0.0)


class BeamChoice(NamedTuple):
    """After a step: the parent of each beam, as `Scheduler.replace_beams` takes it, and its new token."""

    parents: list[int]
    tokens: list[int]


@dataclass
class BeamSearch:
    """The state of one request's search.

    Attributes:
        eos: the tokens that end a hypothesis, if `params` do not ignore them.
        is_scored: whether hypotheses are wanted; without, only the tokens of the beams are chosen.
    """

    request: Request
    params: BeamSearchParams
    eos: frozenset[int] = frozenset()
    _live: list[_Step] = field(default_factory=lambda: [_START])  # by beam; one before the first token
    _ranks: list[int] = field(default_factory=lambda: [0])  # beams, the best first
    _completed: list[_Step] = field(default_factory=list)
    _received: dict[int, TokenLogprobs] = field(default_factory=dict)

    @property
    def sampling_params(self) -> SamplingParams:
        """What the beams sample by, so that each step gives the candidates."""
        count = 2 * self.params.beam_width
        return SamplingParams(max_tokens=self.params.max_tokens, temperature=0.0, ignore_eos=True, logprobs=count)

    def receive(self, new: NewTokens) -> None:
        """Take the candidates of a beam; its sampled token is taken back."""
        sequence = new.sequence
        assert sequence.token_ids is not None and new.logprobs is not None
        sequence.token_ids.pop()
        beam = self.request.sequences.index(sequence)
        if beam < len(self._live):  # the forks of a prompt have the candidates of the first
            (self._received[beam],) = new.logprobs

    def choose(self) -> BeamChoice:
        """The next beams, when the candidates of all are there."""
        assert len(self._received) == len(self._live)
        candidates: list[tuple[int, _Step]] = []
        for beam in self._ranks:
            before, logprobs = self._live[beam], self._received[beam]
            for token, each in logprobs.items():
                step = _Step(before, token, logprobs, before.cum_logprob + each.logprob)
                if token in self.eos and not self.params.ignore_eos:
                    self._completed.append(step)
                else:
                    candidates.append((beam, step))
        candidates.sort(key=lambda candidate: candidate[1].cum_logprob, reverse=True)
        children = candidates[: self.params.beam_width]
        placed = in_place([parent for parent, _ in children])
        self._live = [children[child][1] for child in placed]
        self._ranks = sorted(range(len(placed)), key=placed.__getitem__)
        self._received.clear()
        return BeamChoice([children[child][0] for child in placed], [step.token for step in self._live])

    def output(self, prompt: list[int], tokenizer: Any) -> BeamSearchOutput:
        """The best hypotheses so far; raises what the tokenizer raises."""
        live = [self._live[beam] for beam in self._ranks] if self._live != [_START] else []
        ended = {id(step) for step in self._completed}
        scored = sorted([*self._completed, *live], key=lambda step: self._score(step, len(prompt)), reverse=True)
        best = [(step, id(step) in ended) for step in scored[: self.params.beam_width]]
        return BeamSearchOutput([self._hypothesis(prompt, step, is_ended, tokenizer) for step, is_ended in best])

    def _score(self, step: _Step, num_prompt_tokens: int) -> float:
        length = num_prompt_tokens + len(step.tokens()) - (step.token in self.eos)
        return float(step.cum_logprob / length**self.params.length_penalty)

    def _hypothesis(self, prompt: list[int], step: _Step, is_ended: bool, tokenizer: Any) -> BeamSearchSequence:
        tokens = prompt + step.tokens()
        return BeamSearchSequence(
            tokens=tokens,
            logprobs=[each.logprobs for each in step.steps()],
            cum_logprob=step.cum_logprob,
            text=None if tokenizer is None else tokenizer.decode(tokens),
            finish_reason="stop" if is_ended else "length",
            stop_reason=step.token if is_ended else None,
        )


class BeamState:
    """A request of a call to `LLM.beam_search`, in the place of a `RequestState`."""

    has_stop_strings = False
    bad_words: abc.Sequence[abc.Sequence[int]] = ()

    def __init__(self, search: BeamSearch, prompt: Prompt, tokenizer: Any) -> None:
        self.request = search.request
        self.params = search
        self._prompt = prompt
        self._tokenizer = tokenizer

    def find_stop_string(self, sequence: Sequence, token: int) -> str | None:
        return None

    def receive(self, new: NewTokens) -> None:
        """The engine has given the tokens to the search already."""

    def output(self, *, finished: bool) -> BeamSearchOutput:
        """The best hypotheses so far; raises what the tokenizer raises."""
        return self.params.output(self._prompt.token_ids, self._tokenizer)
