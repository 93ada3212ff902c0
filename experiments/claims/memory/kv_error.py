"""How far do next-token distributions move with the KV cache in fp8, int8 and int4, instead of in full precision?

The tiny model with random weights computes prompts of random tokens, whose attention reads keys and values from the
cache. For every position, the distribution of the next token is compared with that over a cache in float32:

    kl_nats       Kullback-Leibler divergence from full precision, mean over positions
    top1          share of positions with the same most likely token
    logit_error   root mean square of the differences of logits, over the standard deviation of the logits

Weights are random (standard deviation 0.1, so that distributions differ between positions). The figures show the
arithmetic of the formats, and bound those of a trained model neither from above nor from below: its keys have channels
that are much larger than the others, and its distributions are sharper.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from engine.engine_config import EngineConfig, KVDtype
from engine.models.model_config import ModelConfig
from engine.runner.cache import kv_cache
from engine.runner.cache.kv_scales import whole_prompt
from engine.runner.executors.executor import Rank
from experiments import composed


@torch.inference_mode()
def prompt_logits(model_config: ModelConfig, kv_dtype: KVDtype, prompts: list[Tensor]) -> Tensor:
    """float32[tokens, vocabulary]: the logits of all positions of the prompts, one prompt after the other."""
    config = EngineConfig(kv_cache_dtype=kv_dtype, load_format="random", max_model_len=max(map(len, prompts)))
    model = Rank(config, model_config, None).model
    size, dtype = config.block_size, kv_cache.cache_dtype(config, model_config)
    found = []
    for ids in prompts:
        blocks = -(-len(ids) // size)
        cache = kv_cache.allocate(model_config, blocks, size, 1, dtype, torch.device("cpu"))
        hidden = model(ids, torch.arange(len(ids)), cache, whole_prompt(ids, size))
        found.append(model.compute_logits(hidden).float())
    return torch.cat(found)


def distances(exact: Tensor, other: Tensor) -> dict[str, float]:
    """How far `other` logits are from `exact` ones, [tokens, vocabulary]."""
    logs = exact.log_softmax(-1), other.log_softmax(-1)
    divergences = (logs[0].exp() * (logs[0] - logs[1])).sum(-1)
    return {
        "kl_nats": float(divergences.mean()),
        "top1": float((exact.argmax(-1) == other.argmax(-1)).float().mean()),
        "logit_error": float((exact - other).square().mean().sqrt() / exact.std()),
    }


def tiny() -> ModelConfig:
    """The tiny model, with weights of a standard deviation of 0.1."""
    return replace(ModelConfig.from_shape(composed("model=tiny").model.model_dump()), initializer_range=0.1)


def measure(model_config: ModelConfig, num_prompts: int, num_tokens: int) -> dict[str, dict[str, Any]]:
    """Distances from full precision, and the bytes of a block of 16 tokens, by KV dtype."""
    generator = torch.Generator().manual_seed(0)
    prompts = list(torch.randint(0, model_config.vocab_size, (num_prompts, num_tokens), generator=generator))
    exact = prompt_logits(model_config, "auto", prompts)
    found: dict[str, dict[str, Any]] = {}
    for kv_dtype in get_args(KVDtype):
        stored = kv_cache.cache_dtype(EngineConfig(kv_cache_dtype=kv_dtype), model_config)
        found[kv_dtype] = {"block_bytes": kv_cache.block_bytes(model_config, 16, 1, stored)}
        if kv_dtype != "auto":
            found[kv_dtype] |= distances(exact, prompt_logits(model_config, kv_dtype, prompts))
    return found
