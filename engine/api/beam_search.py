"""Beam search as vLLM's offline API has it: parameters, results, and the search, as a client of the engine.

Each step gives the engine every live beam as a prompt of its own, which generates one token: of the prompt and of the
tokens that beams have in common, the prefix cache holds the full blocks. Every beam brings its `2 * beam_width` most
likely next tokens. Of all these continuations those with an end-of-sequence token are completed, and the `beam_width`
best others are the next live beams. When `max_tokens` tokens are generated, the best of the completed and the live ones
are returned, by

    cumulative log probability / (tokens without an end-of-sequence token) ** length_penalty

where the tokens include those of the prompt, as in vLLM.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine.api.outputs import FinishReason, RequestOutput, TokenLogprobs
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

    @property
    def sampling_params(self) -> SamplingParams:
        """What a beam generates by in a step: one token, and the candidates for it."""
        count = 2 * self.beam_width
        return SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=count, detokenize=False)


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


class _Child(NamedTuple):
    """A beam, continued by one more token."""

    beam: BeamSearchSequence
    token: int
    logprobs: TokenLogprobs
    cum_logprob: float

    def grown(self) -> BeamSearchSequence:
        beam = self.beam
        return BeamSearchSequence([*beam.tokens, self.token], [*beam.logprobs, self.logprobs], self.cum_logprob)


class BeamSearch:
    """The search for one prompt.

    Args:
        eos: the tokens that end a hypothesis, if `params` do not ignore them.
        longest: most tokens of a hypothesis, prompt and output.
    """

    def __init__(self, prompt: list[int], params: BeamSearchParams, eos: frozenset[int], longest: int) -> None:
        self.live = [BeamSearchSequence(prompt, [])]
        self._completed: list[BeamSearchSequence] = []
        self._params = params
        self._eos = eos
        self._num_left = min(params.max_tokens, max(1, longest - len(prompt)))  # the engine refuses a prompt too long

    @property
    def goes_on(self) -> bool:
        return self._num_left > 0 and bool(self.live)

    def step(self, outputs: abc.Iterator[RequestOutput]) -> None:
        """Chooses the next live beams; `outputs` yields the engine's output for each live beam, in their order."""
        ends: list[_Child] = []
        children: list[_Child] = []
        for beam, output in zip(self.live, outputs, strict=False):
            (logprobs,) = output.outputs[0].logprobs or [{}]
            for token, each in logprobs.items():
                is_end = token in self._eos and not self._params.ignore_eos
                (ends if is_end else children).append(_Child(beam, token, logprobs, beam.cum_logprob + each.logprob))
        children.sort(key=lambda child: child.cum_logprob, reverse=True)
        self.live = [child.grown() for child in children[: self._params.beam_width]]
        self._completed = self._best([*self._completed, *(child.grown() for child in ends)])
        self._num_left -= 1

    def output(self, tokenizer: Any) -> BeamSearchOutput:
        """The best hypotheses so far; raises what the tokenizer raises."""
        for ended in self._completed:
            ended.finish_reason, ended.stop_reason = "stop", ended.tokens[-1]
        for beam in self.live:
            beam.finish_reason = "length"
        best = self._best([*self._completed, *self.live])
        for each in best:
            each.text = None if tokenizer is None else tokenizer.decode(each.tokens)
        return BeamSearchOutput(best)

    def _best(self, hypotheses: list[BeamSearchSequence]) -> list[BeamSearchSequence]:
        return sorted(hypotheses, key=self._score, reverse=True)[: self._params.beam_width]

    def _score(self, beam: BeamSearchSequence) -> float:
        length = len(beam.tokens) - (beam.tokens[-1] in self._eos)
        return float(beam.cum_logprob / length**self._params.length_penalty)
