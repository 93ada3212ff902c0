"""The blocks of decoder-only transformers, and how each family puts them together.

    tokens -> embedding -> [ norm -> attention -> norm -> MLP ] x layers -> norm -> hidden -> output head -> logits

A layer returns its MLP's output `x` and the `residual` (the sum of all outputs before `x`) as two tensors. The next
norm adds `x` to the residual and normalises the sum in one kernel. No shape in a forward pass depends on the data and
the host never waits for the device, so that a CUDA graph can capture the pass.
"""

from __future__ import annotations

from torch import Tensor, nn

from engine.models.layers.attention import Attention, LayerCache
from engine.models.layers.biased_experts import BiasedExperts
from engine.models.layers.experts import Experts, SigmoidChoice
from engine.models.layers.latent_attention import LatentAttention
from engine.models.layers.linear import (
    ColumnParallelLinear,
    RMSNorm,
    RowParallelLinear,
    Rows,
    VocabParallelEmbedding,
    VocabParallelHead,
)
from engine.models.layers.parallel import TensorParallel
from engine.models.layers.rotary import Rotary
from engine.models.model_config import ModelConfig
from kernels.activation import silu_and_mul
from kernels.attention.backends import AttentionBackend, AttentionMetadata


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))`, `[T, H] -> [T, H]`."""

    def __init__(self, name: str, config: ModelConfig, tp: TensorParallel, size: int) -> None:
        super().__init__()
        parts = [Rows.shard(f"{name}.{part}", size, tp) for part in ("gate_proj", "up_proj")]
        self.gate_up_proj = ColumnParallelLinear(config.hidden_size, parts, fp8=config.fp8)
        self.down_proj = RowParallelLinear(f"{name}.down_proj", size, config.hidden_size, tp, fp8=config.fp8)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(silu_and_mul(self.gate_up_proj(x)))
        return output


class MoE(nn.Module):
    """Mixture of gated MLPs: each token goes through its `num_experts_per_token` best ones, and through the shared
    ones; `[T, H] -> [T, H]`."""

    def __init__(self, name: str, config: ModelConfig, tp: TensorParallel) -> None:
        super().__init__()
        self.tp = tp
        self.top_k = config.num_experts_per_token
        self.renormalize = config.norm_topk_prob
        self.scale = config.routed_scaling_factor
        width, has_biases = config.moe_intermediate_size, config.clamped_gate is not None
        rows = Rows(f"{name}.{'router' if has_biases else 'gate'}", config.num_experts, 0, config.num_experts)
        self.router = ColumnParallelLinear(config.hidden_size, [rows], has_biases)
        routing = config.sigmoid_routing
        self.choice = None if routing is None else SigmoidChoice(f"{name}.gate", config.num_experts, routing)
        self.experts: Experts | BiasedExperts
        if has_biases:
            self.experts = BiasedExperts(f"{name}.experts", config, tp)
        else:
            parts = ("w1", "w3", "w2") if config.family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
            self.experts = Experts(
                f"{name}.experts", config.num_experts, config.hidden_size, width, tp, config.fp8, parts
            )
        self.shared = None
        if config.num_shared_experts:
            self.shared = GatedMLP(f"{name}.shared_experts", config, tp, config.num_shared_experts * width)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        if self.choice is not None:
            logits = self.choice(logits, self.top_k)
        routed = self.tp.all_reduce(self.experts(x, logits, self.top_k, self.renormalize))
        if self.scale != 1.0:
            routed = routed * self.scale
        return routed if self.shared is None else routed + self.shared(x)


class DecoderLayer(nn.Module):
    """Attention and MLP, each after a norm."""

    def __init__(self, name: str, config: ModelConfig, attention: Attention | LatentAttention, mlp: nn.Module) -> None:
        super().__init__()
        self.input_norm = RMSNorm(f"{name}.input_layernorm", config.hidden_size, config.rms_norm_eps)
        self.attention = attention
        self.post_norm = RMSNorm(f"{name}.post_attention_layernorm", config.hidden_size, config.rms_norm_eps)
        self.mlp = mlp

    def forward(
        self, x: Tensor, residual: Tensor | None, positions: Tensor, cache: LayerCache, metadata: AttentionMetadata
    ) -> tuple[Tensor, Tensor]:
        q, residual = self.begin(x, residual, positions, cache, metadata.slot_mapping)
        return self.end(self.attention.attend(q, cache, metadata), residual)

    def begin(
        self,
        x: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        cache: LayerCache,
        slots: Tensor,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What comes before attention: (q, residual); `out` is that of `Attention.project`."""
        x, residual = self.input_norm.add(x, residual)
        return self.attention.project(x, positions, cache, slots, out), residual

    def end(self, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """What comes after attention."""
        x, residual = self.post_norm.add(self.attention.output(attended), residual)
        return self.mlp(x), residual


def make_layer(
    index: int, config: ModelConfig, tp: TensorParallel, backend: AttentionBackend, rotary: Rotary
) -> DecoderLayer:
    """Layer number `index`, counted from 0, as the Hugging Face class of the family has it.

    family       biases of q, k and v   bias of the output   q and k normed per head   MLP
    llama        attention_bias         attention_bias       no                        dense
    mistral      no                     no                     no                        dense
    qwen2        yes                    no                   no                        dense
    qwen3        attention_bias         attention_bias       yes                       dense
    qwen3_moe    attention_bias         attention_bias       yes                       experts in most or all layers
    mixtral      no                     no                   no                        experts
    gpt_oss      attention_bias         attention_bias       no                        experts with biases
    deepseek     latent attention without biases                                       experts after some dense layers
    """
    name, bias = f"model.layers.{index}", config.attention_bias
    qkv_bias, output_bias = (True, False) if config.family == "qwen2" else (bias, bias)
    attention: Attention | LatentAttention
    if config.latent is not None:
        attention = LatentAttention(f"{name}.self_attn", config, tp, backend, rotary)
    else:
        attention = Attention(
            f"{name}.self_attn", config, tp, backend, rotary,
            qkv_bias=qkv_bias, output_bias=output_bias, qk_norm=config.qk_norm, window=config.window_of(index),
        )  # fmt: skip
    place = f"{name}.{'block_sparse_moe' if config.family == 'mixtral' else 'mlp'}"
    sparse = config.has_experts(index)
    mlp = MoE(place, config, tp) if sparse else GatedMLP(place, config, tp, config.intermediate_size)
    return DecoderLayer(name, config, attention, mlp)


def layer_caches(kv_cache: Tensor) -> list[LayerCache]:
    """The keys and values of each layer, from `[num_layers, 2, ...]`; latents twice, from `[num_layers, 1, ...]`."""
    return [(layer[0], layer[-1]) for layer in kv_cache]


class CausalLM(nn.Module):
    """A whole model: `forward` computes the hidden states of a step's tokens, `compute_logits` the logits of some."""

    def __init__(self, config: ModelConfig, tp: TensorParallel, backend: AttentionBackend) -> None:
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

    def forward(
        self, input_ids: Tensor, positions: Tensor, kv_cache: LayerCache, metadata: AttentionMetadata
    ) -> Tensor:
        """Compute the tokens of one step and store their keys and values in the KV cache.

        Args:
            input_ids, positions: int64[T], in the order of `metadata`.
            kv_cache: of the shape of `engine.runner.cache.kv_cache.cache_shape`; written in place.

        Returns:
            Final hidden states `[T, hidden_size]`, the same on every rank.
        """
        x, residual = self.embedding(input_ids), None
        for layer, cache in zip(self.layers, layer_caches(kv_cache), strict=True):
            x, residual = layer(x, residual, positions, cache, metadata)
        return self.norm.add(x, residual)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """`[S, hidden_size] -> [S, vocab_size]`, the same on every rank."""
        logits: Tensor = self.head(hidden)
        return logits
