"""Blocks of checkpoints whose layers are not alike, or have latent attention, states or shared experts, from their
`config.json`.

    family                              attention                            MLPs
    DeepSeek-V2, -V3, Kimi-K2           latent                               dense layers, then experts, one shared
    DeepSeek-V3.2, GLM-5                sparse latent; of GLM-5.2 only some layers have an indexer
    GLM-4.5, MiMo-V2, Step-3            grouped query, with windows          dense layers, then experts
    MiniMax-M2                          grouped query, normed over all heads experts
    Qwen3-Next, Qwen3.5                 gated delta net, gated grouped query experts, one shared and gated, or dense
    Kimi Linear, Kimi-K3, GLM-5.3 Flash delta attention, latent              as DeepSeek-V3
    Nemotron-H, Nemotron-3              Mamba-2, grouped query               in layers of their own: dense or experts
    Llama-4                             grouped query, most in chunks        experts, one shared, in each n-th layer
    Gemma-4                             grouped query, most with a window    dense, and experts beside it
    Muse Glimmer                        gated grouped query, with windows    dense
    Nemotron NAS                        grouped query in some layers         dense, of a width for each layer
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from engine.json_file import Fields, ModelError
from engine.model_sizes import MOST_LAYERS, MOST_WIDTH, read_num_experts

Blocks = list[dict[str, Any]]
_WIDTH: dict[str, Any] = {"most": MOST_WIDTH}
_OPTIONAL: dict[str, Any] = {"least": 0, "most": MOST_WIDTH}


def _block(number: int, kind: str, **sizes: int) -> dict[str, Any]:
    return {"number": number, "kind": kind, **{name: size for name, size in sizes.items() if size}}


def num_layers_of(fields: Fields) -> int:
    listed = fields.data.get("layers_block_type")
    return len(listed) if isinstance(listed, list) else fields.count("num_hidden_layers", most=MOST_LAYERS)


def _kinds(fields: Fields, key: str) -> Counter[str]:
    """How many layers are of each type in a list of them."""
    kinds = fields.texts(key)
    if len(kinds) != num_layers_of(fields):
        raise ModelError(f"{fields.where}: {key} has {len(kinds)} values for {num_layers_of(fields)} layers")
    return Counter(kinds)


# -- attention --------------------------------------------------------------------------------------------------------


def _latent(fields: Fields, number: int, num_extras: int = 0) -> Blocks:
    sizes = {
        "num_heads": fields.count("num_attention_heads", **_WIDTH),
        "kv_rank": fields.count("kv_lora_rank", **_WIDTH),
        "nope_dim": fields.count("qk_nope_head_dim", **_WIDTH),
        "rope_dim": fields.count("qk_rope_head_dim", **_OPTIONAL),
        "value_dim": fields.count("v_head_dim", **_WIDTH),
        "query_rank": fields.count("q_lora_rank", 0, **_OPTIONAL),
        "has_gate": fields.flag("mla_use_output_gate"),
    }
    sparse = {"index_topk": fields.count("index_topk", 0, **_OPTIONAL)}
    if not sparse["index_topk"]:
        return [_block(number, "latent", **sizes, num_extras=num_extras)]
    indexer = {
        "index_heads": fields.count("index_n_heads", **_WIDTH),
        "index_dim": fields.count("index_head_dim", **_WIDTH),
    }
    if pool := fields.count("index_kpool", 0, **_OPTIONAL):  # keys of so many tokens are one, by a gate and positions
        num_extras += indexer["index_dim"] * (fields.count("hidden_size", **_WIDTH) + pool)
    shared = list(fields.texts("indexer_types")).count("shared") if fields.data.get("indexer_types") else 0
    return [
        _block(number - shared, "latent", **sizes, **sparse, **indexer, num_extras=num_extras),
        _block(shared, "latent", **sizes, **sparse, num_extras=num_extras),
    ]


def _grouped(fields: Fields, number: int, prefix: str = "", **sizes: int) -> dict[str, Any]:
    """Grouped-query attention; `prefix` of the keys that hold its heads."""
    heads = fields.count(f"{prefix}num_attention_heads", **_WIDTH)
    own = {
        "num_heads": heads,
        "num_kv_heads": fields.count(f"{prefix}num_key_value_heads", heads, most=heads),
        "head_dim": fields.count(f"{prefix}head_dim", fields.count("hidden_size", **_WIDTH) // heads, **_WIDTH),
    }
    return _block(number, "grouped_query", **(own | sizes))


def _windowed(fields: Fields, **sizes: int) -> Blocks:
    """Layers without and with a window, by `layer_types`."""
    number = num_layers_of(fields)
    sliding = _kinds(fields, "layer_types")["sliding_attention"] if fields.data.get("layer_types") else 0
    window = fields.count("sliding_window", **_WIDTH) if sliding else 0
    return [_grouped(fields, number - sliding, "", **sizes), _grouped(fields, sliding, "", **sizes, window=window)]


def _kimi_delta(fields: Fields, number: int, num_extras: int = 0) -> dict[str, Any]:
    linear = fields.fields("linear_attn_config")
    heads, dim = linear.count("num_heads", **_WIDTH), linear.count("head_dim", **_WIDTH)
    return _block(
        number, "kimi_delta", num_heads=heads, num_key_heads=heads, key_dim=dim, value_dim=dim,
        kernel=linear.count("short_conv_kernel_size", **_WIDTH), has_full_gate=linear.flag("use_full_rank_gate"),
        num_extras=num_extras,
    )  # fmt: skip


# -- MLPs -------------------------------------------------------------------------------------------------------------


def _num_dense(fields: Fields) -> int:
    """Layers with a dense MLP among those with experts."""
    number = num_layers_of(fields)
    if fields.data.get("mlp_layer_types"):
        return _kinds(fields, "mlp_layer_types")["dense"]
    if isinstance(fields.data.get("moe_layer_freq"), list):
        return fields.counts("moe_layer_freq", most=1, most_values=number).count(0)
    return fields.count("first_k_dense_replace", 0, least=0, most=number)


def _mixed_mlps(fields: Fields, *, num_extras: int = 0, corrects: bool = True, float32_router: bool = False) -> Blocks:
    """Dense layers, then experts; `corrects`: whether the router corrects the score of each expert by a bias."""
    number, dense = num_layers_of(fields), _num_dense(fields)
    mlp = _block(
        dense, "dense", intermediate_size=fields.count("intermediate_size", **_OPTIONAL), num_extras=num_extras
    )
    sizes = {"num_extras": num_extras, "float32_router": float32_router}
    return [mlp, _experts(fields, number - dense, corrects=corrects, **sizes)]


def _experts(
    fields: Fields, number: int, *, corrects: bool = True, num_extras: int = 0, **sizes: int
) -> dict[str, Any]:
    num_experts, used = read_num_experts(fields)
    key = "moe_intermediate_size" if fields.data.get("moe_intermediate_size") else "intermediate_size"
    width = fields.count(key, **_WIDTH)
    shared = max(fields.count(key, 0, **_OPTIONAL) for key in ("n_shared_experts", "num_shared_experts"))
    own = {
        "intermediate_size": width,
        "shared_size": shared * width,
        "latent_size": fields.count("routed_expert_hidden_size", 0, **_OPTIONAL),
    }
    extras = num_extras + (num_experts if corrects else 0)
    return _block(number, "experts", num_experts=num_experts, num_used=used, **(own | sizes), num_extras=extras)


# -- families ---------------------------------------------------------------------------------------------------------


def _deepseek(fields: Fields) -> Blocks:
    corrects = fields.data.get("topk_method", "noaux_tc") == "noaux_tc"
    return _latent(fields, num_layers_of(fields)) + _mixed_mlps(fields, corrects=corrects)


def _glm4_moe(fields: Fields) -> Blocks:
    extras = 0
    if fields.flag("attention_bias"):
        heads, kv_heads = (fields.count(key, **_WIDTH) for key in ("num_attention_heads", "num_key_value_heads"))
        extras = (heads + 2 * kv_heads) * fields.count("head_dim", **_WIDTH)
    attention = _grouped(fields, num_layers_of(fields), qk_norm=fields.flag("use_qk_norm"), num_extras=extras)
    return [attention, *_mixed_mlps(fields, float32_router=True)]


def _minimax_m2(fields: Fields) -> Blocks:
    """The norms of query and key have a weight for each of their elements."""
    number = num_layers_of(fields)
    if 0 in fields.counts("attn_type_list", most=1, most_values=MOST_LAYERS):
        raise ModelError("state-space or linear-attention layers (attn_type_list) cannot be simulated")
    attention = _grouped(fields, number, qk_norm=True, norm_spans_heads=True)
    heads = attention["num_heads"] + attention["num_kv_heads"] - 2  # beside those that each norm has
    attention["num_extras"] = heads * attention["head_dim"]
    return [attention, _experts(fields, number, float32_router=True, routes_ungrouped=True)]


def _qwen3_next(fields: Fields) -> Blocks:
    number = num_layers_of(fields)
    if fields.data.get("layer_types"):
        linear = _kinds(fields, "layer_types")["linear_attention"]
    else:
        linear = number - number // fields.count("full_attention_interval", 4, most=MOST_LAYERS)
    keys = (
        "linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )  # fmt: skip
    names = ("num_heads", "num_key_heads", "key_dim", "value_dim", "kernel")
    sizes = {name: fields.count(key, **_WIDTH) for name, key in zip(names, keys, strict=True)}
    state_bytes = 4 if fields.data.get("mamba_ssm_dtype") == "float32" else 2
    blocks = [
        _block(linear, "gated_delta_net", **sizes, state_element_bytes=state_bytes),
        _grouped(fields, number - linear, qk_norm=True, has_gate=True),
    ]
    if not fields.data.get("num_experts"):
        return [*blocks, _block(number, "dense", intermediate_size=fields.count("intermediate_size", **_WIDTH))]
    shared = fields.count("shared_expert_intermediate_size", **_WIDTH)
    return [*blocks, _experts(fields, number, corrects=False, shared_size=shared, has_shared_gate=True)]


def _kimi_linear(fields: Fields) -> Blocks:
    number = num_layers_of(fields)
    linear = len(fields.fields("linear_attn_config").counts("kda_layers", most=number, most_values=number))
    return [_kimi_delta(fields, linear), *_latent(fields, number - linear), *_mixed_mlps(fields)]


def _glm5_next(fields: Fields) -> Blocks:
    """With hyper-connections: `hc_mult` hidden states, which a matrix mixes before and after each block."""
    number, linear = num_layers_of(fields), _kinds(fields, "layer_types")["linear_attention"]
    streams = fields.count("hc_mult", **_WIDTH)
    mixed = streams * (2 + streams)
    extras = mixed * streams * fields.count("hidden_size", **_WIDTH) + mixed + 3
    blocks = [_kimi_delta(fields, linear, extras)]
    # Layers of linear attention have no indexer of their own.
    return [*blocks, *_latent(fields, number - linear, extras), *_mixed_mlps(fields, num_extras=extras)]


def _nemotron_h(fields: Fields) -> Blocks:
    pattern = fields.data.get("hybrid_override_pattern")
    letters = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
    if isinstance(pattern, str) and set(pattern) <= set(letters):
        kinds = Counter(letters[letter] for letter in pattern)
    else:
        kinds = Counter(fields.texts("layers_block_type"))
    width = fields.count("intermediate_size", **_OPTIONAL)
    mamba = _block(
        kinds["mamba"], "mamba2",
        num_heads=fields.count("mamba_num_heads", **_WIDTH), num_key_heads=fields.count("n_groups", **_WIDTH),
        key_dim=fields.count("ssm_state_size", **_WIDTH), value_dim=fields.count("mamba_head_dim", **_WIDTH),
        kernel=fields.count("conv_kernel", **_WIDTH),
        state_element_bytes=4 if fields.data.get("mamba_ssm_cache_dtype") == "float32" else 2,
    )  # fmt: skip
    head_dim = "head_dim" if fields.data.get("head_dim") else "attention_head_dim"
    attention = _grouped(fields, kinds["attention"], head_dim=fields.count(head_dim, **_WIDTH))
    blocks = [mamba, attention, _block(kinds["mlp"], "dense", intermediate_size=width)]
    if kinds["moe"]:
        shared = fields.count("moe_shared_expert_intermediate_size", **_WIDTH)
        latent = fields.count("moe_latent_size", 0, **_OPTIONAL)
        blocks.append(_experts(fields, kinds["moe"], shared_size=shared, latent_size=latent))
    return [{**block, "is_gated": False} if block["kind"] in ("dense", "experts") else block for block in blocks]


def _llama4(fields: Fields) -> Blocks:
    """Each fourth layer attends to all tokens, the others to those of a chunk, here to a window of its length."""
    number = num_layers_of(fields)
    full = number // 4
    chunk = fields.count("attention_chunk_size", **_WIDTH)
    moe = number // fields.count("interleave_moe_layer_step", most=number)
    width = fields.count("intermediate_size", **_WIDTH)
    experts = _experts(fields, moe, corrects=False, shared_size=width)
    dense = _block(number - moe, "dense", intermediate_size=fields.count("intermediate_size_mlp", **_WIDTH))
    return [_grouped(fields, full), _grouped(fields, number - full, window=chunk), dense, experts]


def _gemma4(fields: Fields) -> Blocks:
    number, hidden = num_layers_of(fields), fields.count("hidden_size", **_WIDTH)
    sliding = _kinds(fields, "layer_types")["sliding_attention"]
    window = fields.count("sliding_window", **_WIDTH)
    shares = fields.flag("attention_k_eq_v")
    wide: dict[str, int] = {
        "head_dim": fields.count("global_head_dim", **_WIDTH), "shares_projection": shares,
        **({"num_kv_heads": fields.count("num_global_key_value_heads", **_WIDTH)} if shares else {}),
    }  # fmt: skip
    full = _grouped(fields, number - sliding, "", qk_norm=True, num_extras=hidden, **wide)
    blocks = [full, _grouped(fields, sliding, qk_norm=True, num_extras=hidden, window=window)]
    width = fields.count("intermediate_size", **_WIDTH)
    blocks.append(_block(number, "dense", intermediate_size=width, num_extras=hidden))
    if fields.flag("enable_moe_block"):  # with two more norms, and scales of the hidden state and of each expert
        extras = 3 * hidden + read_num_experts(fields)[0]
        blocks.append(_experts(fields, number, corrects=False, num_extras=extras))
    return blocks


def _mimo_v2(fields: Fields) -> Blocks:
    number = num_layers_of(fields)
    sliding = fields.counts("hybrid_layer_pattern", most=1, most_values=number).count(1)
    window = fields.count("sliding_window", **_WIDTH)
    full = _grouped(fields, number - sliding, value_dim=fields.count("v_head_dim", **_WIDTH))
    inner = _grouped(
        fields, sliding, "swa_", window=window, value_dim=fields.count("swa_v_head_dim", **_WIDTH),
        num_extras=fields.count("swa_num_attention_heads", **_WIDTH),  # a sink for each
    )  # fmt: skip
    is_float32 = fields.data.get("moe_router_dtype", "float32") == "float32"
    return [full, inner, *_mixed_mlps(fields, float32_router=is_float32)]


def _step3(fields: Fields) -> Blocks:
    """Its output is gated head by head."""
    gate = fields.count("num_attention_heads", **_WIDTH) * fields.count("hidden_size", **_WIDTH)
    return [*_windowed(fields, qk_norm=True, num_extras=gate), *_mixed_mlps(fields, float32_router=True)]


def _muse(fields: Fields) -> Blocks:
    hidden = fields.count("hidden_size", **_WIDTH)
    width = fields.count("intermediate_size", **_WIDTH)
    mlp = _block(num_layers_of(fields), "dense", intermediate_size=width, num_extras=hidden)
    return [*_windowed(fields, has_gate=True, num_extras=hidden), mlp]


def _nemotron_nas(fields: Fields) -> Blocks:
    heads, hidden = fields.count("num_attention_heads", **_WIDTH), fields.count("hidden_size", **_WIDTH)
    groups: Counter[int] = Counter()
    widths: Counter[int] = Counter()
    layers = fields.value("block_configs")
    for layer in layers if isinstance(layers, list) else ():
        attention, mlp = (Fields(layer, "block_configs").fields(key) for key in ("attention", "ffn"))
        if not attention.flag("no_op"):
            groups[attention.count("n_heads_in_group", **_WIDTH)] += 1
        if not mlp.flag("no_op"):
            width = int(2 * mlp.number("ffn_mult", least=0.0, most=1e3) * hidden / 3)
            widths[-(-width // 256) * 256] += 1
    attentions = [
        _grouped(fields, number, num_kv_heads=heads // group, head_dim=hidden // heads)
        for group, number in groups.items()
    ]
    return [*attentions, *(_block(number, "dense", intermediate_size=width) for width, number in widths.items())]


READERS: dict[str, Callable[[Fields], Sequence[dict[str, Any]]]] = {
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "DeepseekV32ForCausalLM": _deepseek,
    "GlmMoeDsaForCausalLM": _deepseek,
    "KimiK25ForConditionalGeneration": _deepseek,
    "Glm4MoeForCausalLM": _glm4_moe,
    "MiniMaxM2ForCausalLM": _minimax_m2,
    "Qwen3NextForCausalLM": _qwen3_next,
    "Qwen3_5ForCausalLM": _qwen3_next,
    "Qwen3_5ForConditionalGeneration": _qwen3_next,
    "Qwen3_5MoeForCausalLM": _qwen3_next,
    "Qwen3_5MoeForConditionalGeneration": _qwen3_next,
    "KimiLinearForCausalLM": _kimi_linear,
    "KimiK3ForConditionalGeneration": _kimi_linear,
    "Glm5NextForConditionalGeneration": _glm5_next,
    "NemotronHForCausalLM": _nemotron_h,
    "Llama4ForConditionalGeneration": _llama4,
    "Gemma4ForConditionalGeneration": _gemma4,
    "MiMoV2FlashForCausalLM": _mimo_v2,
    "Step3p7FlashForCausalLM": _step3,
    "MuseGlimmerForConditionalGeneration": _muse,
    "DeciLMForCausalLM": _nemotron_nas,
}


def read_blocks(architecture: str, fields: Fields) -> tuple[dict[str, Any], ...]:
    """The blocks of a model of an architecture of READERS, as entries of `model.blocks`; raises ModelError."""
    return tuple(block for block in READERS[architecture](fields) if block["number"])
