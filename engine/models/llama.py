"""Llama 3; from Llama 3.1 on with a stretched rotary embedding (Hugging Face's `LlamaForCausalLM`)."""

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
    bias = config.attention_bias
    attention = Attention(
        f"{name}.self_attn", config, tp, backend, rotary, qkv_bias=bias, output_bias=bias, qk_norm=False
    )
    return DecoderLayer(name, config, attention, GatedMLP(f"{name}.mlp", config, tp))
