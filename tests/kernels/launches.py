"""A model and a step, for the GPU of `tests.cuda_standin`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from engine.models import build_model
from engine.models.blocks import CausalLM
from engine.models.layers.parallel import TensorParallel
from engine.models.model_config import ModelConfig
from engine.models.quantization import Fp8Weights
from engine.runner.cache.kv_cache import cache_shape
from kernels.attention.backends import AttentionMetadata
from kernels.attention.triton_backend import TritonBackend
from tests.cuda_standin import CUDA


def make_model(num_layers: int, fp8: Fp8Weights | None = None, **changes: Any) -> CausalLM:
    """A model with the structure of Qwen3-0.6B and few weights, in bfloat16 or float8, with the Triton backend."""
    shape: dict[str, Any] = {
        "name": "small", "num_layers": num_layers, "hidden_size": 32, "num_attention_heads": 4, "num_kv_heads": 2,
        "head_dim": 16, "intermediate_size": 48, "vocab_size": 200, "tie_word_embeddings": True, "dtype": "bfloat16",
        "max_position_embeddings": 8192, "num_experts": 0, "num_experts_per_token": 0, "moe_intermediate_size": 0,
        **changes,
    }  # fmt: skip
    return build(replace(ModelConfig.from_shape(shape), fp8=fp8))


def build(config: ModelConfig) -> CausalLM:
    """The model of a configuration with weights of zeros, in bfloat16, with the Triton backend."""
    model = build_model(config, TensorParallel(), TritonBackend(), torch.bfloat16, CUDA)
    for weights in model.parameters():
        weights.data.zero_()
    return model


def run_step(model: CausalLM, chunks: list[int], num_decodes: int, cache_dtype: torch.dtype = torch.bfloat16) -> None:
    """A step of prompt chunks and decodes with contexts of up to 4,096 tokens."""
    config, num_tokens = model.config, sum(chunks) + num_decodes
    cache = torch.zeros(cache_shape(config, 2, 16, 1, torch.bfloat16), device=CUDA).to(cache_dtype)
    bounds = torch.tensor([0, *chunks], dtype=torch.int32, device=CUDA).cumsum(0, dtype=torch.int32)
    metadata = AttentionMetadata(
        slot_mapping=torch.zeros(num_tokens, dtype=torch.int64, device=CUDA),
        num_prefill_tokens=sum(chunks),
        cu_seqlens_q=bounds,
        prefill_context_lens=torch.tensor(chunks, dtype=torch.int32, device=CUDA),
        prefill_block_tables=torch.zeros(len(chunks), 4, dtype=torch.int32, device=CUDA),
        max_seqlen_q=max(chunks, default=0),
        max_prefill_context=max(chunks, default=0),
        decode_context_lens=torch.ones(num_decodes, dtype=torch.int32, device=CUDA),
        decode_block_tables=torch.zeros(num_decodes, 256, dtype=torch.int32, device=CUDA),
        max_decode_context=4096,
    )
    zeros = torch.zeros(num_tokens, dtype=torch.int64, device=CUDA)
    model(zeros, zeros, cache, metadata)
