"""Qwen2 and Qwen2.5: q, k and v have biases (Hugging Face's `Qwen2ForCausalLM`)."""

from __future__ import annotations

from engine.models.attention import Attention, Rotary
from engine.models.blocks import DecoderLayer, GatedMLP
from engine.models.model_config import ModelConfig
from engine.models.parallel import TensorParallel
from kernels.attention import AttentionBackend


def make_layer(
    index: int, config: ModelConfig, tp: TensorParallel, backend: AttentionBackend, rotary: Rotary
) -> DecoderLayer:
    """Layer number `index`, counted from 0."""
    name = f"model.layers.{index}"
    attention = Attention(
        f"{name}.self_attn", config, tp, backend, rotary, qkv_bias=True, output_bias=False, qk_norm=False
    )
    return DecoderLayer(name, config, attention, GatedMLP(f"{name}.mlp", config, tp))
