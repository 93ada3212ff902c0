"""The blocks of decoder-only transformers; a family's model file puts them together.

    tokens -> embedding -> [ norm -> attention -> norm -> MLP ] x layers -> norm -> hidden -> output head -> logits

A layer returns its MLP's output `x` and the `residual` (the sum of all outputs before `x`) as two tensors. The next
norm adds `x` to the residual and normalises the sum in one kernel. No shape in a forward pass depends on the data and
the host never waits for the device, so that a CUDA graph can capture the pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.models.checkpoint import CheckpointTensor
from engine.models.layers import (
    ColumnParallelLinear,
    Experts,
    Layer,
    RowParallelLinear,
    Rows,
    VocabParallelEmbedding,
    VocabParallelHead,
    kv_head_rows,
    parameter,
)
from engine.models.model_config import Llama3RopeScaling, ModelConfig
from engine.models.parallel import TensorParallel
from kernels.activation import silu_and_mul
from kernels.attention import AttentionBackend, AttentionMetadata
from kernels.moe import fused_moe
from kernels.norm import add_rms_norm, rms_norm
from kernels.rotary import rotary
from kernels.rotary_store import HeadNorms, rotary_store
from kernels.runtime import runs_triton


class RMSNorm(Layer):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, name: str, size: int, eps: float) -> None:
        super().__init__()
        self.name = name
        self.eps = eps
        self.weight = parameter(size)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """`(norm(x + residual), x + residual)`; without a residual, `(norm(x), x)`."""
        if residual is None:
            return self(x), x
        return add_rms_norm(x, residual, self.weight, self.eps)

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        shape = tuple(self.weight.shape)
        yield CheckpointTensor(f"{self.name}.weight", shape, (slice(None),), self.weight, is_norm=True)


class Rotary(nn.Module):
    """Rotary position embedding from a float32 table `[max_position_embeddings, head_dim]`, cosines before sines."""

    cos_sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        frequencies = rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
        angles = torch.outer(positions, frequencies)
        self.register_buffer("cos_sin", torch.cat((angles.cos(), angles.sin()), dim=-1), persistent=False)

    def forward(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return rotary(q, k, self.cos_sin, positions)


def rotary_frequencies(head_dim: int, theta: float, scaling: Llama3RopeScaling | None) -> Tensor:
    """Radians per position of each pair of dimensions, `float32[head_dim / 2]`.

    Llama 3.1's scaling stretches long wavelengths by `factor`, keeps short wavelengths, and interpolates between the
    two (transformers, `modeling_rope_utils._compute_llama3_parameters`).
    """
    frequencies = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if scaling is None:
        return frequencies
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


class Attention(nn.Module):
    """Grouped-query self-attention on the paged KV cache.

    Args:
        name: the module's name in checkpoints, for example `model.layers.0.self_attn`. The other blocks have one too.
        qkv_bias: whether the projections to q, k and v have biases.
        output_bias: whether the output projection has a bias.
        qk_norm: whether q and k are normalised per head.
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        tp: TensorParallel,
        backend: AttentionBackend,
        rotary: Rotary,
        *,
        qkv_bias: bool,
        output_bias: bool,
        qk_norm: bool,
    ) -> None:
        super().__init__()
        self.backend = backend
        self.rotary = rotary
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        self.kv_scales: Tensor | None = None  # set for a float8 cache by engine.runner.kv_quantization
        q_size = config.num_attention_heads * config.head_dim
        parts = [Rows.shard(f"{name}.q_proj", q_size, tp)]
        parts += [
            kv_head_rows(f"{name}.{part}", config.num_kv_heads, config.head_dim, tp) for part in ("k_proj", "v_proj")
        ]
        self.heads = [part.size // config.head_dim for part in parts]
        self.qkv_proj = ColumnParallelLinear(config.hidden_size, parts, qkv_bias, config.fp8)
        self.o_proj = RowParallelLinear(f"{name}.o_proj", q_size, config.hidden_size, tp, output_bias, config.fp8)
        self.q_norm = RMSNorm(f"{name}.q_norm", config.head_dim, config.rms_norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(f"{name}.k_norm", config.head_dim, config.rms_norm_eps) if qk_norm else None

    def forward(self, x: Tensor, positions: Tensor, cache: Tensor, metadata: AttentionMetadata) -> Tensor:
        """`x [T, H] -> [T, H]`; `cache` is this layer's `[2, num_blocks, block_size, kv_heads, head_dim]`."""
        qkv = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        keys, values = cache[0], cache[1]
        k: Tensor | None
        v: Tensor | None
        if self.stores_itself(qkv):
            q, k, v = self.rotary_store(qkv, positions, keys, values, metadata.slot_mapping), None, None
        else:
            q, k, v = qkv.split(self.heads, dim=1)
            if self.q_norm is not None and self.k_norm is not None:
                q, k = self.q_norm(q), self.k_norm(k)
            q, k = self.rotary(q, k, positions)
        attended = self.backend.forward(q, k, v, keys, values, metadata, self.scale, kv_scales=self.kv_scales)
        output: Tensor = self.o_proj(attended.flatten(1))
        return output

    def stores_itself(self, x: Tensor) -> bool:
        """Whether `rotary_store` stores keys and values on the device of x; otherwise the attention backend does."""
        return runs_triton(x) and self.backend.takes_stored

    def rotary_store(self, qkv: Tensor, positions: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> Tensor:
        """Normalise and rotate q and k, and store k and v in the caches `keys` and `values`; returns q."""
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        return rotary_store(qkv, norms, self.rotary.cos_sin, positions, keys, values, slots, self.kv_scales)


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))`, `[T, H] -> [T, H]`."""

    def __init__(self, name: str, config: ModelConfig, tp: TensorParallel) -> None:
        super().__init__()
        size = config.intermediate_size
        parts = [Rows.shard(f"{name}.{part}", size, tp) for part in ("gate_proj", "up_proj")]
        self.gate_up_proj = ColumnParallelLinear(config.hidden_size, parts, fp8=config.fp8)
        self.down_proj = RowParallelLinear(f"{name}.down_proj", size, config.hidden_size, tp, fp8=config.fp8)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(silu_and_mul(self.gate_up_proj(x)))
        return output


class MoE(nn.Module):
    """Mixture of gated MLPs: each token goes through its `num_experts_per_token` best ones; `[T, H] -> [T, H]`."""

    def __init__(self, name: str, config: ModelConfig, tp: TensorParallel) -> None:
        super().__init__()
        self.tp = tp
        self.top_k = config.num_experts_per_token
        self.renormalize = config.norm_topk_prob
        rows = Rows(f"{name}.gate", config.num_experts, 0, config.num_experts)
        self.router = ColumnParallelLinear(config.hidden_size, [rows])
        self.experts = Experts(
            f"{name}.experts", config.num_experts, config.hidden_size, config.moe_intermediate_size, tp
        )

    def forward(self, x: Tensor) -> Tensor:
        experts = self.experts
        return self.tp.all_reduce(fused_moe(x, self.router(x), experts.w13, experts.w2, self.top_k, self.renormalize))


class DecoderLayer(nn.Module):
    """Attention and MLP, each after a norm."""

    def __init__(self, name: str, config: ModelConfig, attention: Attention, mlp: nn.Module) -> None:
        super().__init__()
        self.input_norm = RMSNorm(f"{name}.input_layernorm", config.hidden_size, config.rms_norm_eps)
        self.attention = attention
        self.post_norm = RMSNorm(f"{name}.post_attention_layernorm", config.hidden_size, config.rms_norm_eps)
        self.mlp = mlp

    def forward(
        self, x: Tensor, residual: Tensor | None, positions: Tensor, cache: Tensor, metadata: AttentionMetadata
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.input_norm.add(x, residual)
        x = self.attention(x, positions, cache, metadata)
        x, residual = self.post_norm.add(x, residual)
        return self.mlp(x), residual


class LayerFactory(Protocol):
    """Makes layer number `index` (from 0) of a family's model; every model file defines one such function."""

    def __call__(
        self, index: int, config: ModelConfig, tp: TensorParallel, backend: AttentionBackend, rotary: Rotary
    ) -> DecoderLayer: ...


class CausalLM(nn.Module):
    """A whole model: `forward` computes the hidden states of a step's tokens, `compute_logits` the logits of some."""

    def __init__(
        self, config: ModelConfig, tp: TensorParallel, backend: AttentionBackend, make_layer: LayerFactory
    ) -> None:
        super().__init__()
        self.config = config
        rotary = Rotary(config)
        self.embedding = VocabParallelEmbedding("model.embed_tokens", config.vocab_size, config.hidden_size, tp)
        self.layers = nn.ModuleList(
            make_layer(index, config, tp, backend, rotary) for index in range(config.num_layers)
        )
        self.norm = RMSNorm("model.norm", config.hidden_size, config.rms_norm_eps)
        tied = self.embedding if config.tie_word_embeddings else None
        self.head = VocabParallelHead("lm_head", config.vocab_size, config.hidden_size, tp, tied)

    def forward(self, input_ids: Tensor, positions: Tensor, kv_cache: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Compute the tokens of one step and store their keys and values in the KV cache.

        Args:
            input_ids, positions: int64[T], in the order of `metadata`.
            kv_cache: `[num_layers, 2, num_blocks, block_size, num_kv_heads_per_rank, head_dim]`; written in place.

        Returns:
            Final hidden states `[T, hidden_size]`, the same on every rank.
        """
        x, residual = self.embedding(input_ids), None
        for layer, cache in zip(self.layers, kv_cache, strict=True):
            x, residual = layer(x, residual, positions, cache, metadata)
        return self.norm.add(x, residual)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """`[S, hidden_size] -> [S, vocab_size]`, the same on every rank."""
        logits: Tensor = self.head(hidden)
        return logits
