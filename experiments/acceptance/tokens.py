"""Are log probabilities those of transformers with the same weights, and tokens with CUDA graphs those without?"""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.api.llm import LLM
from engine.models.model_config import ModelConfig
from engine.sampling_params import SamplingParams
from experiments.acceptance.context import Context
from experiments.acceptance.engines import model_shape, save_model

OUTPUT_TOKENS = 12
EXACT_GOAL = 1e-3  # of float32, whose sums differ in their order
BF16_FACTOR = 3.0  # errors of bfloat16, beside those of transformers in bfloat16
LENGTHS = (700, 333, 41)  # of the prompts of the model of a real size
EQUAL_GOAL = 0.9  # padding changes the order of sums, which can decide a near tie of two tokens differently
_SMALL = {"max_num_batched_tokens": 24, "num_blocks": 200, "max_model_len": 128}
_REAL = {"max_num_batched_tokens": 512, "num_blocks": 400, "max_model_len": 1024}

Prompts = list[list[int]]


def models(context: Context) -> None:
    """Small models of every family, then Qwen3-0.6B with random weights, all in chunks and decode steps."""
    checkpoints: Any = importlib.import_module("tests.engine.models.builders")
    with tempfile.TemporaryDirectory() as folder:
        for variant in checkpoints.VARIANTS[: 2 if context.rehearse else None]:
            path = Path(folder) / variant
            checkpoints.save(variant, path)
            _compare(context, variant, path, checkpoints.prompts(), _SMALL)
        if not context.rehearse:
            generator = torch.Generator().manual_seed(2)
            prompts = [torch.randint(0, 10_000, (n,), generator=generator).tolist() for n in LENGTHS]
            save_model(context, Path(folder))
            _compare(context, "qwen3-0.6b", Path(folder), prompts, _REAL)


def _compare(context: Context, name: str, folder: Path, prompts: Prompts, sizes: dict[str, int]) -> None:
    has_experts = ModelConfig.from_hf(json.loads((folder / "config.json").read_text())).num_experts > 0
    for dtype in (torch.float32, torch.bfloat16) if context.is_cuda else (torch.float32,):
        sequences, found = _ours(context, folder, dtype, prompts, sizes)
        exact = _theirs(context, folder, torch.float32, dtype, sequences)
        errors = (found - exact).abs()
        bound = EXACT_GOAL
        if dtype == torch.bfloat16:
            bound = BF16_FACTOR * float((_theirs(context, folder, dtype, dtype, sequences) - exact).abs().max())
        # Where two experts have nearly equal weights, rounding may choose the other one. This affects few tokens.
        is_rounded_choice = dtype == torch.bfloat16 and has_experts
        error = float(errors.median() if is_rounded_choice else errors.max())
        kind = str(dtype).removeprefix("torch.")
        context.record[f"{name}/{kind}"] = {"max": float(errors.max()), "median": float(errors.median())}
        context.add(f"{name}, {kind}: error of log probabilities", f"{error:.1e}", f"< {bound:.1e}", error < bound)


def _ours(
    context: Context, folder: Path, dtype: torch.dtype, prompts: Prompts, sizes: dict[str, int]
) -> tuple[Prompts, Tensor]:
    """(prompts and generated tokens, log probability of each token)."""
    kind = str(dtype).removeprefix("torch.")
    graphs: Any = "auto" if context.is_cuda else True  # no graph holds latent attention in float32 on a GPU
    settings: dict[str, Any] = {"max_num_seqs": 4, "cuda_graphs": graphs, **sizes}
    llm = LLM(folder, device=context.device.type, dtype=kind, **settings)
    try:
        greedy = SamplingParams(
            max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True, logprobs=0, prompt_logprobs=0
        )
        outputs = llm.generate(prompts, greedy)
    finally:
        llm.close()
    sequences, found = [], []
    for output in outputs:
        assert output.prompt_logprobs is not None and output.outputs[0].logprobs is not None
        sequence = output.prompt_token_ids + output.outputs[0].token_ids
        places = [each for each in output.prompt_logprobs if each is not None] + output.outputs[0].logprobs
        found += [each[token].logprob for token, each in zip(sequence[1:], places, strict=True)]
        sequences.append(sequence)
    return sequences, torch.tensor(found)


def _theirs(
    context: Context, folder: Path, computed_in: torch.dtype, rounded_to: torch.dtype, sequences: Prompts
) -> Tensor:
    """transformers' log probabilities of all tokens but the first ones, from weights rounded to `rounded_to`."""
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=rounded_to)
    model.to(context.device, computed_in).eval()
    found = []
    with torch.inference_mode():
        for sequence in sequences:
            tokens = torch.tensor(sequence, device=context.device)
            chances = model(tokens.unsqueeze(0)).logits[0].float().log_softmax(-1)
            found.append(chances[:-1].gather(1, tokens[1:, None])[:, 0].cpu())
    return torch.cat(found)


def graphs(context: Context) -> None:
    """Tokens with CUDA graphs and without, in float32, where rounding hardly ever changes a token."""
    shape = {**model_shape(context.rehearse), "num_layers": 2, "dtype": "float32", "tie_word_embeddings": False}
    # With larger weights than usual the text varies, so that equal tokens prove something.
    model = replace(ModelConfig.from_shape(shape), initializer_range=0.1)
    count, length = (4, 6) if context.rehearse else (27, 120)
    prompts = [[(7 * i + 3 * j) % 997 + 1 for j in range(1 + 37 * i % 90)] for i in range(count)]
    cases = {
        "greedy": SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True),
        "sampled": SamplingParams(max_tokens=length, temperature=0.8, ignore_eos=True, seed=1),
        "top-k and top-p": SamplingParams(max_tokens=length, temperature=0.8, top_k=40, top_p=0.9, seed=1),
    }
    variants: dict[str, dict[str, Any]] = {
        "no graphs": {"cuda_graphs": False, "max_lookahead_steps": 1},
        "graphs": {"cuda_graphs": True},
        "graphs, not ahead": {"cuda_graphs": True, "async_scheduling": False},
        "graphs, tight pool": {"cuda_graphs": True, "num_blocks": 160},
    }
    found: dict[str, dict[str, Prompts]] = {}
    for variant, settings in variants.items():
        sizes = {"max_num_seqs": 20, "num_blocks": 2000, "max_model_len": 512, "max_num_batched_tokens": 256}
        llm = LLM(model, device=context.device.type, dtype="float32", **{**sizes, **settings})
        try:
            found[variant] = _generate(llm, prompts, cases)
            if context.is_cuda and variant == "graphs":
                _implicit_waits(context, llm, prompts, cases)
        finally:
            llm.close()
        for case, tokens in found[variant].items():
            equal = sum(a == b for a, b in zip(found["no graphs"][case], tokens, strict=True))
            name = f"{case}: requests of {variant} with the eager path's tokens"
            passed = equal >= EQUAL_GOAL * len(prompts)
            context.add(name, f"{equal} of {len(prompts)}", f">= {EQUAL_GOAL:.0%}", passed)


def _generate(llm: LLM, prompts: Prompts, cases: dict[str, SamplingParams]) -> dict[str, Prompts]:
    return {case: [output["token_ids"] for output in llm.generate(prompts, each)] for case, each in cases.items()}


def _implicit_waits(context: Context, llm: LLM, prompts: Prompts, cases: dict[str, SamplingParams]) -> None:
    """How often a warm engine waits for the device, besides the wait for tokens, which torch does not count."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _generate(llm, prompts, cases)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [str(each.message) for each in caught if "synchroniz" in str(each.message)]
    context.record["waits"] = waits[:20]
    context.add("waits for the device beside that for tokens", str(len(waits)), "0", not waits)
