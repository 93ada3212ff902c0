"""What only some families state in `config.json`: windows, experts, latent attention. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.json_file import Fields, ModelError, shown
from engine.model_sizes import MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, read_num_experts
from engine.models.families import Family
from engine.models.quantization import read_quantization

_CLAMPED = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}  # the defaults of gpt-oss


@dataclass(frozen=True)
class LatentSizes:
    """Sizes of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).

    Attributes:
        kv_lora_rank: elements of a token's latent, from which the keys and values of all heads are made.
        q_lora_rank: elements from which the queries are made; 0: they are made from the hidden state.
        qk_nope_head_dim, qk_rope_head_dim: elements of a query or key without and with rotary embedding; those with it
            are the same in the keys of all heads.
        v_head_dim: elements of a value.
    """

    kv_lora_rank: int
    q_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def width(self) -> int:
        """Elements that the cache holds of each token."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True)
class SigmoidRouting:
    """DeepSeek-V3's choice of experts: those with the largest sigmoid of their logit plus a bias of each expert, out of
    the `num_used_groups` of `num_groups` equal groups whose two best experts have the largest sum."""

    num_groups: int
    num_used_groups: int


@dataclass(frozen=True)
class ClampedGate:
    """gpt-oss' gate: `(clamp(up, ±limit) + 1) * g * sigmoid(alpha * g)` with `g = min(gate, limit)`."""

    alpha: float
    limit: float


def family_fields(fields: Fields, family: Family, num_layers: int) -> dict[str, Any]:
    """Fields of `ModelConfig` that are read in another way for each family.

    Raises:
        ModelError: a key is missing or out of range, or an option is not supported.
    """
    is_mxfp4 = family == "gpt_oss" and fields.fields("quantization_config").data.get("quant_method") == "mxfp4"
    common = {
        "fp8": None if is_mxfp4 else read_quantization(fields),
        "attention_bias": family not in ("mistral", "mixtral") and fields.flag("attention_bias"),
    }
    if family == "mistral":
        return common | {"sliding_window": _sliding_window(fields, 4096)}
    if family == "qwen3_moe":
        return common | _expert_fields(fields, "moe_intermediate_size") | _layers_with_experts(fields)
    if family == "mixtral":
        experts = _expert_fields(fields, "intermediate_size") | {"norm_topk_prob": True}
        return common | experts | {"sliding_window": _sliding_window(fields, 0)}
    if family == "gpt_oss":
        return common | _gpt_oss_fields(fields, num_layers) | {"mxfp4": is_mxfp4}
    if family in ("deepseek_v2", "deepseek_v3"):
        return common | _deepseek_fields(fields, is_v3=family == "deepseek_v3")
    return common


def _sliding_window(fields: Fields, default: int) -> int:
    """The window; none where it is null or as long as any context, and the default where it is left out."""
    if fields.data.get("sliding_window", default) in (None, 0):
        return 0
    window = fields.count("sliding_window", default, most=MOST_TOKENS)
    return window if window < fields.count("max_position_embeddings", most=MOST_TOKENS) else 0


def _expert_fields(fields: Fields, width: str) -> dict[str, Any]:
    num_experts, num_experts_per_token = read_num_experts(fields)
    return {
        "num_experts": num_experts,
        "num_experts_per_token": num_experts_per_token,
        "moe_intermediate_size": fields.count(width, most=MOST_WIDTH),
    }


def _layers_with_experts(fields: Fields) -> dict[str, Any]:
    return {
        "norm_topk_prob": fields.flag("norm_topk_prob"),
        "decoder_sparse_step": fields.count("decoder_sparse_step", 1, most=MOST_LAYERS),
        "mlp_only_layers": fields.counts("mlp_only_layers", most=MOST_LAYERS, most_values=MOST_LAYERS),
    }


def _gpt_oss_fields(fields: Fields, num_layers: int) -> dict[str, Any]:
    """Every second layer has the window, beginning with the first one, unless `layer_types` says otherwise."""
    kinds = fields.texts("layer_types") if fields.data.get("layer_types") else ()
    full = tuple(i for i, kind in enumerate(kinds) if kind == "full_attention") if kinds else range(1, num_layers, 2)
    window = _sliding_window(fields, 128)
    gate = (fields.number(key, value, least=0.0, most=1e6) for key, value in _CLAMPED.items())
    return _expert_fields(fields, "intermediate_size") | {
        "attention_bias": fields.data.get("attention_bias") is None or fields.flag("attention_bias"),
        "norm_topk_prob": True,
        "sliding_window": window,
        "full_layers": tuple(full) if window else (),
        "clamped_gate": ClampedGate(*gate),
    }


def _deepseek_fields(fields: Fields, *, is_v3: bool) -> dict[str, Any]:
    """The latent of keys and values is one KV head; the first layers are dense."""
    choice = ("noaux_tc", "sigmoid", True) if is_v3 else ("greedy", "softmax", False)
    supported = dict(zip(("topk_method", "scoring_func", "norm_topk_prob"), choice, strict=True))
    for key, value in (supported | {"attention_bias": False}).items():
        if fields.data.get(key, value) not in (value, None):
            raise ModelError(f"config.json: {key}={shown(fields.data[key])} is not supported, only {value!r}")
    has_rank = fields.data.get("q_lora_rank") is not None
    widths = (fields.count(f"{name}_head_dim", most=MOST_WIDTH) for name in ("qk_nope", "qk_rope", "v"))
    latent = LatentSizes(
        fields.count("kv_lora_rank", most=MOST_WIDTH),
        fields.count("q_lora_rank", most=MOST_WIDTH) if has_rank else 0,
        *widths,
    )
    routing = None
    if is_v3:
        num_groups = fields.count("n_group", 8, most=MOST_LAYERS)
        routing = SigmoidRouting(num_groups, fields.count("topk_group", 4, most=num_groups))
    return _expert_fields(fields, "moe_intermediate_size") | {
        "norm_topk_prob": is_v3,
        "sigmoid_routing": routing,
        "num_kv_heads": 1,
        "head_dim": latent.qk_nope_head_dim + latent.qk_rope_head_dim,
        "latent": latent,
        "num_shared_experts": fields.count("n_shared_experts", 0, least=0, most=MOST_LAYERS),
        "routed_scaling_factor": fields.number("routed_scaling_factor", 1.0, least=0.0, most=1e3),
        "mlp_only_layers": tuple(range(fields.count("first_k_dense_replace", 0, least=0, most=MOST_LAYERS))),
    }
