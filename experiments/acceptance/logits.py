"""Are the log probabilities of every family those of transformers with the same weights?

The engine computes prompts in chunks and then decodes; transformers computes each whole sequence at once.
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.api.llm import LLM
from engine.sampling_params import SamplingParams
from experiments.acceptance.common import Context
from experiments.acceptance.engines import save_model

OUTPUT_TOKENS = 12
EXACT_GOAL = 1e-3  # of float32, whose sums differ in their order
BF16_FACTOR = 3.0  # errors of bfloat16, beside those of transformers in bfloat16
LENGTHS = (700, 333, 41)  # of the prompts of the model of a real size
_SMALL = {"max_num_batched_tokens": 24, "num_blocks": 200, "max_model_len": 128}
_REAL = {"max_num_batched_tokens": 512, "num_blocks": 400, "max_model_len": 1024}

Prompts = list[list[int]]


def models(context: Context) -> None:
    """Small models of every family, then Qwen3-0.6B with random weights."""
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
    for dtype in (torch.float32, torch.bfloat16) if context.is_cuda else (torch.float32,):
        plain, sequences, found = _ours(context, folder, dtype, prompts, sizes)
        exact = _theirs(context, folder, torch.float32, dtype, sequences)
        errors = (found - exact).abs()
        bound = EXACT_GOAL
        if dtype == torch.bfloat16:
            bound = BF16_FACTOR * float((_theirs(context, folder, dtype, dtype, sequences) - exact).abs().max())
        # Where two experts have nearly equal weights, rounding may choose the other one. This affects few tokens.
        is_rounded_choice = dtype == torch.bfloat16 and "moe" in name
        error = float(errors.median() if is_rounded_choice else errors.max())
        kind = str(dtype).removeprefix("torch.")
        context.record[f"{name}/{kind}"] = {
            "max": float(errors.max()), "median": float(errors.median()), "bound": bound, "tokens": len(errors),
        }  # fmt: skip
        context.add(f"{name}, {kind}: error of log probabilities", f"{error:.1e}", f"< {bound:.1e}", error < bound)
        if dtype == torch.float32:
            equal = sum(a == b[len(b) - len(a) :] for a, b in zip(plain, sequences, strict=True))
            value = f"{equal} of {len(plain)}"
            context.add(f"{name}: greedy texts of the graphs", value, "all", equal == len(plain))


def _ours(
    context: Context, folder: Path, dtype: torch.dtype, prompts: Prompts, sizes: dict[str, int]
) -> tuple[Prompts, Prompts, Tensor]:
    """(tokens generated without log probabilities, prompts and generated tokens, log probability of each token)."""
    settings: dict[str, Any] = {
        **sizes,
        "device": context.device.type,
        "dtype": str(dtype).removeprefix("torch."),
        "max_num_seqs": 4,
    }
    llm = LLM(folder, cuda_graphs=True, **settings)
    greedy: dict[str, Any] = {"max_tokens": OUTPUT_TOKENS, "temperature": 0.0, "ignore_eos": True}
    try:
        plain = [output["token_ids"] for output in llm.generate(prompts, SamplingParams(**greedy))]
        outputs = llm.generate(prompts, SamplingParams(**greedy, logprobs=0, prompt_logprobs=0))
    finally:
        llm.close()
    sequences, found = [], []
    for output in outputs:
        assert output.prompt_logprobs is not None and output.outputs[0].logprobs is not None
        sequence = output.prompt_token_ids + output.outputs[0].token_ids
        places = [each for each in output.prompt_logprobs if each is not None] + output.outputs[0].logprobs
        found += [each[token].logprob for token, each in zip(sequence[1:], places, strict=True)]
        sequences.append(sequence)
    return plain, sequences, torch.tensor(found)


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
