"""Calls of an engine that plans ahead, and what they give without: needs torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.api.llm import LLM
from engine.sampling_params import SamplingParams
from tests.engine.builders import GREEDY, MODEL, SETTINGS, make_prompts

PROMPTS = make_prompts()[:8]
BRIEF = replace(GREEDY, max_tokens=16)
STOPS = tuple(range(0, 300, 12))
# What each prompt is sampled with, in turn: stops that nobody foresees, forks, and edits of the logits by the output.
MIXED = [
    BRIEF,
    replace(BRIEF, stop_token_ids=STOPS, min_tokens=2),
    SamplingParams(n=3, max_tokens=15, temperature=0.8, seed=7, stop_token_ids=STOPS),
    SamplingParams(max_tokens=14, temperature=0.9, seed=3, repetition_penalty=1.2, frequency_penalty=0.5, top_k=50),
    replace(BRIEF, logprobs=2, prompt_logprobs=1),
    SamplingParams(n=2, max_tokens=12, temperature=1.0, seed=5, logprobs=1, presence_penalty=1.0, min_tokens=4),
    replace(BRIEF, max_tokens=1),
    SamplingParams(max_tokens=18, temperature=1.1, seed=1, top_p=0.8, min_p=0.05, stop_token_ids=STOPS),
]


def ahead(**settings: Any) -> LLM:
    return LLM(MODEL, **{**SETTINGS, "async_scheduling": True, **settings})


def serve(llm: LLM) -> list[Any]:
    """All that a call returns for each prompt, and the engine's pool is empty after it."""
    outputs = llm.generate(PROMPTS, MIXED)
    assert llm.engine.scheduler.blocks.num_used_blocks() == 0
    llm.engine.scheduler.check_integrity()
    return [rounded(output) for output in outputs]


def rounded(output: Any) -> Any:
    """Log probabilities of equal sums in another order differ in their last bits."""
    sequences = [
        (each.token_ids, each.finish_reason, each.stop_reason, _logprobs(each.logprobs)) for each in output.outputs
    ]
    return sequences, _logprobs(output.prompt_logprobs)


def _logprobs(logprobs: Any) -> Any:
    if logprobs is None:
        return None
    return [None if each is None else {token: round(value.logprob, 3) for token, value in each.items()}
            for each in logprobs]  # fmt: skip
