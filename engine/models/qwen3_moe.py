"""Qwen3 mixture of experts: as Qwen3, but most or all layers have experts (Hugging Face's `Qwen3MoeForCausalLM`)."""

from __future__ import annotations

from engine.models.attention import Attention, Rotary
from engine.models.blocks import DecoderLayer, GatedMLP, MoE
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
        f"{name}.self_attn", config, tp, backend, rotary, qkv_bias=bias, output_bias=bias, qk_norm=True
    )
    mlp = MoE if config.has_experts(index) else GatedMLP
    return DecoderLayer(name, config, attention, mlp(f"{name}.mlp", config, tp))
