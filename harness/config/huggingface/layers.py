"""Blocks of one kind of attention or MLP, as entries of `model.blocks`, from keys that `config.json` files share."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine.json_file import Fields, ModelError
from engine.model_sizes import MOST_LAYERS, MOST_WIDTH, read_num_experts

Blocks = list[dict[str, Any]]
WIDTH: dict[str, Any] = {"most": MOST_WIDTH}
OPTIONAL: dict[str, Any] = {"least": 0, "most": MOST_WIDTH}


def block(number: int, kind: str, **sizes: int) -> dict[str, Any]:
    return {"number": number, "kind": kind, **{name: size for name, size in sizes.items() if size}}


def num_layers_of(fields: Fields) -> int:
    listed = fields.data.get("layers_block_type")
    return len(listed) if isinstance(listed, list) else fields.count("num_hidden_layers", most=MOST_LAYERS)


def kinds_of(fields: Fields, key: str) -> Counter[str]:
    """How many layers are of each type in a list of them."""
    kinds = fields.texts(key)
    if len(kinds) != num_layers_of(fields):
        raise ModelError(f"{fields.where}: {key} has {len(kinds)} values for {num_layers_of(fields)} layers")
    return Counter(kinds)


# -- attention --------------------------------------------------------------------------------------------------------


def latent(fields: Fields, number: int, num_extras: int = 0) -> Blocks:
    sizes = {
        "num_heads": fields.count("num_attention_heads", **WIDTH),
        "kv_rank": fields.count("kv_lora_rank", **WIDTH),
        "nope_dim": fields.count("qk_nope_head_dim", **WIDTH),
        "rope_dim": fields.count("qk_rope_head_dim", **OPTIONAL),
        "value_dim": fields.count("v_head_dim", **WIDTH),
        "query_rank": fields.count("q_lora_rank", 0, **OPTIONAL),
        "has_gate": fields.flag("mla_use_output_gate"),
    }
    sparse = {"index_topk": fields.count("index_topk", 0, **OPTIONAL)}
    if not sparse["index_topk"]:
        return [block(number, "latent", **sizes, num_extras=num_extras)]
    indexer = {
        "index_heads": fields.count("index_n_heads", **WIDTH),
        "index_dim": fields.count("index_head_dim", **WIDTH),
    }
    if pool := fields.count("index_kpool", 0, **OPTIONAL):  # keys of so many tokens are one, by a gate and positions
        num_extras += indexer["index_dim"] * (fields.count("hidden_size", **WIDTH) + pool)
    shared = list(fields.texts("indexer_types")).count("shared") if fields.data.get("indexer_types") else 0
    return [
        block(number - shared, "latent", **sizes, **sparse, **indexer, num_extras=num_extras),
        block(shared, "latent", **sizes, **sparse, num_extras=num_extras),
    ]


def grouped(fields: Fields, number: int, prefix: str = "", **sizes: int) -> dict[str, Any]:
    """Grouped-query attention; `prefix` of the keys that hold its heads."""
    heads = fields.count(f"{prefix}num_attention_heads", **WIDTH)
    own = {
        "num_heads": heads,
        "num_kv_heads": fields.count(f"{prefix}num_key_value_heads", heads, most=heads),
        "head_dim": fields.count(f"{prefix}head_dim", fields.count("hidden_size", **WIDTH) // heads, **WIDTH),
    }
    return block(number, "grouped_query", **(own | sizes))


def windowed(fields: Fields, **sizes: int) -> Blocks:
    """Layers without and with a window, by `layer_types`."""
    number = num_layers_of(fields)
    sliding = kinds_of(fields, "layer_types")["sliding_attention"] if fields.data.get("layer_types") else 0
    window = fields.count("sliding_window", **WIDTH) if sliding else 0
    return [grouped(fields, number - sliding, "", **sizes), grouped(fields, sliding, "", **sizes, window=window)]


def kimi_delta(fields: Fields, number: int, num_extras: int = 0) -> dict[str, Any]:
    linear = fields.fields("linear_attn_config")
    heads, dim = linear.count("num_heads", **WIDTH), linear.count("head_dim", **WIDTH)
    return block(
        number, "kimi_delta", num_heads=heads, num_key_heads=heads, key_dim=dim, value_dim=dim,
        kernel=linear.count("short_conv_kernel_size", **WIDTH), has_full_gate=linear.flag("use_full_rank_gate"),
        num_extras=num_extras,
    )  # fmt: skip


# -- MLPs -------------------------------------------------------------------------------------------------------------


def _num_dense(fields: Fields) -> int:
    """Layers with a dense MLP among those with experts."""
    number = num_layers_of(fields)
    if fields.data.get("mlp_layer_types"):
        return kinds_of(fields, "mlp_layer_types")["dense"]
    if isinstance(fields.data.get("moe_layer_freq"), list):
        return fields.counts("moe_layer_freq", most=1, most_values=number).count(0)
    return fields.count("first_k_dense_replace", 0, least=0, most=number)


def mixed_mlps(fields: Fields, *, num_extras: int = 0, corrects: bool = True, float32_router: bool = False) -> Blocks:
    """Dense layers, then experts; `corrects`: whether the router corrects the score of each expert by a bias."""
    number, dense = num_layers_of(fields), _num_dense(fields)
    mlp = block(dense, "dense", intermediate_size=fields.count("intermediate_size", **OPTIONAL), num_extras=num_extras)
    sizes = {"num_extras": num_extras, "float32_router": float32_router}
    return [mlp, experts(fields, number - dense, corrects=corrects, **sizes)]


def experts(fields: Fields, number: int, *, corrects: bool = True, num_extras: int = 0, **sizes: int) -> dict[str, Any]:
    num_experts, used = read_num_experts(fields)
    key = "moe_intermediate_size" if fields.data.get("moe_intermediate_size") else "intermediate_size"
    width = fields.count(key, **WIDTH)
    shared = max(fields.count(key, 0, **OPTIONAL) for key in ("n_shared_experts", "num_shared_experts"))
    own = {
        "intermediate_size": width,
        "shared_size": shared * width,
        "latent_size": fields.count("routed_expert_hidden_size", 0, **OPTIONAL),
    }
    extras = num_extras + (num_experts if corrects else 0)
    return block(number, "experts", num_experts=num_experts, num_used=used, **(own | sizes), num_extras=extras)
