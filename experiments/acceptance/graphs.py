"""Are the tokens with CUDA graphs those of the eager path, and does a warm engine wait for the device?"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch

from engine.api.llm import LLM
from engine.models.model_config import ModelConfig
from engine.sampling_params import SamplingParams
from experiments.acceptance.common import Context
from experiments.acceptance.engines import model_shape

TEMPERATURE_OF_CASES = 0.8
EQUAL_GOAL = 0.9  # padding changes the order of sums, which can decide a near tie of two tokens differently


def graphs(context: Context) -> None:
    """Tokens with CUDA graphs and without, in float32, where rounding hardly ever changes a token."""
    shape = {**model_shape(context.rehearse), "num_layers": 2, "dtype": "float32", "tie_word_embeddings": False}
    # With larger weights than usual the text varies, so that equal tokens prove something.
    model = replace(ModelConfig.from_shape(shape), initializer_range=0.1)
    prompts = [
        [(7 * i + 3 * j) % 997 + 1 for j in range(1 + 37 * i % 90)] for i in range(4 if context.rehearse else 27)
    ]
    length = 6 if context.rehearse else 120
    cases = {
        "greedy": SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True),
        "sampled": SamplingParams(max_tokens=length, temperature=TEMPERATURE_OF_CASES, ignore_eos=True, seed=1),
        "top-k and top-p": SamplingParams(
            max_tokens=length, temperature=TEMPERATURE_OF_CASES, top_k=40, top_p=0.9, seed=1
        ),
    }
    variants: dict[str, dict[str, Any]] = {
        "graphs": {"cuda_graphs": True},
        "graphs, tight pool": {"cuda_graphs": True, "num_blocks": 160},
    }
    expected = _generate(context, model, prompts, cases, cuda_graphs=False, max_lookahead_steps=1)
    for variant, settings in variants.items():
        found = _generate(context, model, prompts, cases, **settings)
        for case in cases:
            equal = sum(a == b for a, b in zip(expected[case], found[case], strict=True))
            context.record[f"{variant}/{case}"] = {"equal": equal, "of": len(prompts)}
            name = f"{case}: requests of {variant} with the eager path's tokens"
            passed = equal >= EQUAL_GOAL * len(prompts)
            context.add(name, f"{equal} of {len(prompts)}", f">= {EQUAL_GOAL:.0%}", passed)
    if context.is_cuda:
        _implicit_waits(context, model, prompts, cases)


def _implicit_waits(
    context: Context, model: ModelConfig, prompts: list[list[int]], cases: dict[str, SamplingParams]
) -> None:
    """How often a warm engine waits for the device, besides the wait for tokens, which torch does not count."""
    llm = _make(context, model, cuda_graphs=True)
    try:
        for params in cases.values():
            llm.generate(prompts, params)
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for params in cases.values():
                llm.generate(prompts, params)
        waits = [str(each.message) for each in caught if "synchroniz" in str(each.message)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
        llm.close()
    context.record["waits"] = waits[:20]
    context.add("waits for the device beside that for tokens", str(len(waits)), "0", not waits)


def _generate(
    context: Context, model: ModelConfig, prompts: list[list[int]], cases: dict[str, SamplingParams], **settings: Any
) -> dict[str, list[list[int]]]:
    llm = _make(context, model, **settings)
    try:
        return {
            case: [output["token_ids"] for output in llm.generate(prompts, params)] for case, params in cases.items()
        }
    finally:
        llm.close()


def _make(context: Context, model: ModelConfig, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {"max_num_seqs": 20, "num_blocks": 2000, "max_model_len": 512, "dtype": "float32"}
    device = "cuda" if context.is_cuda else "cpu"
    return LLM(model, **{**defaults, "device": device, "max_num_batched_tokens": 256, **settings})
