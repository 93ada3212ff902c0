"""Generation by the definitions of the sampling parameters, one full forward pass per token; and runs of the engine."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.api.llm import LLM
from engine.api.llm_engine import LLMEngine
from engine.api.outputs import TokenLogprobs
from engine.core.sequence import Request, Sequence
from engine.models.layers.parallel import TensorParallel
from engine.sampling_params import SamplingParams
from kernels.sampling.sampler import log_exponential
from tests.engine.builders import MODEL, SETTINGS
from tests.engine.models.paged import BLOCK_SIZE, PagedModel, PagedSequence


@dataclass
class Case:
    """A request, and what the engine is told besides its sampling parameters."""

    prompt: list[int]
    params: SamplingParams
    bad_words: list[list[int]] = field(default_factory=list)
    stop_after: list[int] = field(default_factory=list)  # a "stop string" of tokens


@dataclass
class Output:
    """What one sequence got."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Reference:
    """Generates with the weights of an engine with seed 0, from all tokens anew for each token."""

    def __init__(self, eos: abc.Iterable[int] = ()) -> None:
        self._model = PagedModel.build(MODEL, torch.float32, TensorParallel(), 0)
        self._eos = set(eos)

    def logits(self, tokens: list[int]) -> Tensor:
        """float32[tokens, V]"""
        blocks = list(range(-(-len(tokens) // BLOCK_SIZE)))
        return self._model.step([(PagedSequence(tokens, blocks), len(tokens))])[0]

    def generate(self, case: Case, index: int) -> Output:
        """The output of the sequence `index` of a request; its parameters have a seed."""
        params, tokens, out = case.params, list(case.prompt), Output()
        while out.finish_reason is None:
            logits = self.logits(tokens)
            if not out.tokens and index == 0 and params.prompt_logprobs is not None:
                pairs = zip(logits[:-1], tokens[1:], strict=True)
                out.prompt_logprobs = [None, *(logprobs(row, token, params.prompt_logprobs) for row, token in pairs)]
            scores = self.edit(logits[-1], case, out.tokens)
            token = draw(scores, params, ((params.seed or 0) + index) % 2**63, len(tokens))
            if params.logprobs is not None:
                out.logprobs.append(logprobs(logits[-1], token, params.logprobs))
            tokens.append(token)
            out.tokens.append(token)
            self._end(case, out)
        return out

    def edit(self, logits: Tensor, case: Case, output: list[int]) -> list[float]:
        """The logits of one row after all changes that the parameters make before the temperature."""
        params, scores = case.params, logits.tolist()
        forbidden = {word[-1] for word in case.bad_words if ([-1] + output)[-len(word) :][1:] == word[:-1]}
        if len(output) < params.min_tokens:
            forbidden |= self._eos | set(params.stop_token_ids)
        for token in range(len(scores)):
            count = output.count(token)
            if params.allowed_token_ids is not None and token not in params.allowed_token_ids or token in forbidden:
                scores[token] = -torch.inf
            scores[token] += params.logit_bias.get(token, 0.0)
            if count or token in case.prompt:
                factor = params.repetition_penalty
                scores[token] *= 1 / factor if scores[token] > 0 else factor
            scores[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        return scores

    def _end(self, case: Case, out: Output) -> None:
        params, token = case.params, out.tokens[-1]
        if len(out.tokens) == params.max_tokens:
            out.finish_reason = "length"
        if len(out.tokens) <= params.min_tokens:
            return
        if token in self._eos and not params.ignore_eos:
            out.finish_reason = "stop"
        elif token in params.stop_token_ids:
            out.finish_reason, out.stop_reason = "stop", token
        elif case.stop_after and out.tokens[-len(case.stop_after) :] == case.stop_after:
            out.finish_reason, out.stop_reason = "stop", "text"


def draw(scores: list[float], params: SamplingParams, seed: int, position: int) -> int:
    """The token that a row of changed logits yields."""
    if params.temperature == 0:
        return max(range(len(scores)), key=lambda token: (scores[token], -token))
    chances = (torch.tensor(scores) / params.temperature).softmax(0).tolist()
    kept = [t for t, chance in enumerate(chances) if chance and chance >= params.min_p * max(chances)]
    kept.sort(key=lambda token: -chances[token])
    kept = kept[: params.top_k] if params.top_k > 0 else kept
    total, before, nucleus = sum(chances[token] for token in kept), 0.0, []
    for token in kept:
        if before < params.top_p:
            nucleus.append(token)
        before += chances[token] / total
    noise = log_exponential(torch.tensor([seed]), torch.tensor([position]), len(scores))[0].tolist()
    return max(nucleus, key=lambda token: scores[token] / params.temperature - noise[token])


def logprobs(logits: Tensor, token: int, number: int) -> TokenLogprobs:
    """By definition; the ranks of equally likely tokens are not told apart."""
    from engine.api.outputs import Logprob

    values = logits.double().log_softmax(0)
    order = values.argsort(descending=True).tolist()
    chosen = [token, *(order if number < 0 else order[:number])]
    return {each: Logprob(float(values[each]), 1 + order.index(each)) for each in chosen}


def run_engine(llm: LLM, cases: abc.Sequence[Case]) -> dict[tuple[int, int], Output]:
    """Serve all cases at once; returns the outputs by number of the case and index of the sequence."""
    for number, case in enumerate(cases):
        add_case(llm.engine, number, case)
    return finish(llm.engine)


def add_case(engine: LLMEngine, number: int, case: Case) -> Request:
    stop_after, num_prompt_tokens = case.stop_after, len(case.prompt)

    def ends(sequence: Sequence, token: int) -> str | None:
        assert sequence.token_ids is not None and sequence.token_ids[-1] == token
        output = sequence.token_ids[num_prompt_tokens:]
        assert len(output) > case.params.min_tokens
        return "text" if output[-len(stop_after) :] == stop_after else None

    params = case.params
    request = Request(
        number, num_prompt_tokens, params.max_tokens or 0, token_ids=case.prompt.copy(), num_sequences=params.n
    )
    engine.add(request, params, ends=ends if stop_after else None, bad_words=case.bad_words)
    return request


def finish(
    engine: LLMEngine, outputs: dict[tuple[int, int], Output] | None = None, num_steps: int = 10_000
) -> dict[tuple[int, int], Output]:
    """Run the engine until all requests have ended, or for some steps; checks its invariants after each step.

    Returns:
        `outputs`, to which the new tokens are added.
    """
    outputs = {} if outputs is None else outputs
    for now in range(num_steps):
        report = engine.step(now)
        if report is None:
            break
        engine.scheduler.check_integrity()
        for new in report.outputs:
            request = new.sequence.request
            index = request.sequences.index(new.sequence)
            out = outputs.setdefault((request.request_id, index), Output())
            assert out.finish_reason is None, "a sequence that ended gets nothing more"
            out.tokens += new.token_ids
            out.logprobs += new.logprobs or []
            assert new.prompt_logprobs is None or (index == 0 and out.prompt_logprobs is None)
            out.prompt_logprobs = new.prompt_logprobs or out.prompt_logprobs
            out.finish_reason, out.stop_reason = new.finish_reason, new.stop_reason
            assert new.sequence.token_ids == [*new.sequence.token_ids[: request.num_prompt_tokens], *out.tokens]  # type: ignore[index]
    return outputs


def make_llm(**settings: Any) -> LLM:
    return LLM(MODEL, **{**SETTINGS, **settings})
