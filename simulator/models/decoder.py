"""A model from the keys of the configuration."""

from __future__ import annotations

from collections.abc import Mapping

from engine.engine_config import KVDtype
from simulator.models.block import Block
from simulator.models.dense import Dense
from simulator.models.experts import Experts
from simulator.models.grouped_query import GroupedQuery
from simulator.models.latent import Latent
from simulator.models.linear_state import GatedDeltaNet, KimiDelta, Mamba2
from simulator.models.model import Counted, Model
from simulator.models.weight_formats import NONE, Quantization

KINDS: dict[str, type[Block]] = {
    "grouped_query": GroupedQuery,
    "latent": Latent,
    "gated_delta_net": GatedDeltaNet,
    "kimi_delta": KimiDelta,
    "mamba2": Mamba2,
    "dense": Dense,
    "experts": Experts,
}


def decoder(
    *,
    name: str,
    num_layers: int,
    hidden_size: int,
    vocab_size: int,
    tie_word_embeddings: bool,
    max_position_embeddings: int,
    dtype: str,
    num_attention_heads: int = 0,
    num_kv_heads: int = 0,
    head_dim: int = 0,
    intermediate_size: int = 0,
    num_experts: int = 0,
    num_experts_per_token: int = 0,
    moe_intermediate_size: int = 0,
    learned_positions: int = 0,
    sliding_window: int = 0,
    num_sliding_layers: int = 0,
    qk_norm: bool = False,
    extra_layer_parameters: int = 0,
    kv_dtype: KVDtype = "auto",
    quantization: Quantization = NONE,
    part_formats: Mapping[str, Quantization] | None = None,
    blocks: tuple[Counted, ...] = (),
    tower_parameters: int = 0,
) -> Model:
    """The model with these sizes, as `harness.config.ModelConfig` explains them."""

    def attention(window: int) -> GroupedQuery:
        return GroupedQuery(num_attention_heads, num_kv_heads, head_dim, window, qk_norm, extra_layer_parameters)

    if not blocks:
        mlp: Block = Dense(intermediate_size)
        if num_experts:
            mlp = Experts(num_experts, num_experts_per_token, moe_intermediate_size)
        blocks = (
            Counted(num_layers - num_sliding_layers, attention(0)),
            Counted(num_sliding_layers, attention(sliding_window)),
            Counted(num_layers, mlp),
        )
    return Model(
        name, num_layers, hidden_size, vocab_size, tie_word_embeddings, max_position_embeddings, dtype,
        4 if dtype == "fp32" else 2,
        tuple(each for each in blocks if each.number), learned_positions, kv_dtype, quantization,
        part_formats or {}, tower_parameters,
    )  # fmt: skip
