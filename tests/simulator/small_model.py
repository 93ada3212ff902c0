"""A model small enough to be profiled in a test, and an engine for it."""

from __future__ import annotations

from typing import Any

from engine.engine_config import EngineConfig
from engine.models.model_config import ModelConfig
from simulator.hardware import ModelShape

SHAPE: dict[str, Any] = {
    "name": "small", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_kv_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": 300, "tie_word_embeddings": False, "max_position_embeddings": 256,
    "dtype": "float32", "num_experts": 0, "num_experts_per_token": 0, "moe_intermediate_size": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 2, "num_experts_per_token": 2, "moe_intermediate_size": 32}  # all run, whatever the input
FAMILIES = {
    "qwen3": ModelConfig.from_shape(SHAPE),
    "qwen3_moe": ModelConfig.from_shape(SHAPE | EXPERTS),
    "llama": ModelConfig.from_shape(SHAPE | {"name": "Llama"}),
}
MODEL_SHAPE = ModelShape(**SHAPE | {"dtype": "fp32", "dtype_bytes": 4})
ENGINE = EngineConfig(
    num_blocks=64, block_size=16, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=96, load_format="random"
)
