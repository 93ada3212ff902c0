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
from engine.model_sizes import MOST_LAYERS, read_num_experts
from harness.config.huggingface.layers import (
    OPTIONAL,
    WIDTH,
    Blocks,
    block,
    experts,
    grouped,
    kimi_delta,
    kinds_of,
    latent,
    mixed_mlps,
    num_layers_of,
    windowed,
)


def _deepseek(fields: Fields) -> Blocks:
    corrects = fields.data.get("topk_method", "noaux_tc") == "noaux_tc"
    return latent(fields, num_layers_of(fields)) + mixed_mlps(fields, corrects=corrects)


def _glm4_moe(fields: Fields) -> Blocks:
    extras = 0
    if fields.flag("attention_bias"):
        heads, kv_heads = (fields.count(key, **WIDTH) for key in ("num_attention_heads", "num_key_value_heads"))
        extras = (heads + 2 * kv_heads) * fields.count("head_dim", **WIDTH)
    attention = grouped(fields, num_layers_of(fields), qk_norm=fields.flag("use_qk_norm"), num_extras=extras)
    return [attention, *mixed_mlps(fields, float32_router=True)]


def _minimax_m2(fields: Fields) -> Blocks:
    """The norms of query and key have a weight for each of their elements."""
    number = num_layers_of(fields)
    if 0 in fields.counts("attn_type_list", most=1, most_values=MOST_LAYERS):
        raise ModelError("state-space or linear-attention layers (attn_type_list) cannot be simulated")
    attention = grouped(fields, number, qk_norm=True, norm_spans_heads=True)
    heads = attention["num_heads"] + attention["num_kv_heads"] - 2  # beside those that each norm has
    attention["num_extras"] = heads * attention["head_dim"]
    return [attention, experts(fields, number, float32_router=True, routes_ungrouped=True)]


def _qwen3_next(fields: Fields) -> Blocks:
    number = num_layers_of(fields)
    if fields.data.get("layer_types"):
        linear = kinds_of(fields, "layer_types")["linear_attention"]
    else:
        linear = number - number // fields.count("full_attention_interval", 4, most=MOST_LAYERS)
    keys = (
        "linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )  # fmt: skip
    names = ("num_heads", "num_key_heads", "key_dim", "value_dim", "kernel")
    sizes = {name: fields.count(key, **WIDTH) for name, key in zip(names, keys, strict=True)}
    state_bytes = 4 if fields.data.get("mamba_ssm_dtype") == "float32" else 2
    blocks = [
        block(linear, "gated_delta_net", **sizes, state_element_bytes=state_bytes),
        grouped(fields, number - linear, qk_norm=True, has_gate=True),
    ]
    if not fields.data.get("num_experts"):
        return [*blocks, block(number, "dense", intermediate_size=fields.count("intermediate_size", **WIDTH))]
    shared = fields.count("shared_expert_intermediate_size", **WIDTH)
    return [*blocks, experts(fields, number, corrects=False, shared_size=shared, has_shared_gate=True)]


def _kimi_linear(fields: Fields) -> Blocks:
    number = num_layers_of(fields)
    linear = len(fields.fields("linear_attn_config").counts("kda_layers", most=number, most_values=number))
    return [kimi_delta(fields, linear), *latent(fields, number - linear), *mixed_mlps(fields)]


def _glm5_next(fields: Fields) -> Blocks:
    """With hyper-connections: `hc_mult` hidden states, which a matrix mixes before and after each block."""
    number, linear = num_layers_of(fields), kinds_of(fields, "layer_types")["linear_attention"]
    streams = fields.count("hc_mult", **WIDTH)
    mixed = streams * (2 + streams)
    extras = mixed * streams * fields.count("hidden_size", **WIDTH) + mixed + 3
    blocks = [kimi_delta(fields, linear, extras)]
    # Layers of linear attention have no indexer of their own.
    return [*blocks, *latent(fields, number - linear, extras), *mixed_mlps(fields, num_extras=extras)]


def _nemotron_h(fields: Fields) -> Blocks:
    pattern = fields.data.get("hybrid_override_pattern")
    letters = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
    if isinstance(pattern, str) and set(pattern) <= set(letters):
        kinds = Counter(letters[letter] for letter in pattern)
    else:
        kinds = Counter(fields.texts("layers_block_type"))
    width = fields.count("intermediate_size", **OPTIONAL)
    mamba = block(
        kinds["mamba"], "mamba2",
        num_heads=fields.count("mamba_num_heads", **WIDTH), num_key_heads=fields.count("n_groups", **WIDTH),
        key_dim=fields.count("ssm_state_size", **WIDTH), value_dim=fields.count("mamba_head_dim", **WIDTH),
        kernel=fields.count("conv_kernel", **WIDTH),
        state_element_bytes=4 if fields.data.get("mamba_ssm_cache_dtype") == "float32" else 2,
    )  # fmt: skip
    head_dim = "head_dim" if fields.data.get("head_dim") else "attention_head_dim"
    attention = grouped(fields, kinds["attention"], head_dim=fields.count(head_dim, **WIDTH))
    blocks = [mamba, attention, block(kinds["mlp"], "dense", intermediate_size=width)]
    if kinds["moe"]:
        shared = fields.count("moe_shared_expert_intermediate_size", **WIDTH)
        size = fields.count("moe_latent_size", 0, **OPTIONAL)
        blocks.append(experts(fields, kinds["moe"], shared_size=shared, latent_size=size))
    return [{**each, "is_gated": False} if each["kind"] in ("dense", "experts") else each for each in blocks]


def _llama4(fields: Fields) -> Blocks:
    """Each fourth layer attends to all tokens, the others to those of a chunk, here to a window of its length."""
    number = num_layers_of(fields)
    full = number // 4
    chunk = fields.count("attention_chunk_size", **WIDTH)
    moe = number // fields.count("interleave_moe_layer_step", most=number)
    width = fields.count("intermediate_size", **WIDTH)
    moes = experts(fields, moe, corrects=False, shared_size=width)
    dense = block(number - moe, "dense", intermediate_size=fields.count("intermediate_size_mlp", **WIDTH))
    return [grouped(fields, full), grouped(fields, number - full, window=chunk), dense, moes]


def _gemma4(fields: Fields) -> Blocks:
    number, hidden = num_layers_of(fields), fields.count("hidden_size", **WIDTH)
    sliding = kinds_of(fields, "layer_types")["sliding_attention"]
    window = fields.count("sliding_window", **WIDTH)
    shares = fields.flag("attention_k_eq_v")
    wide: dict[str, int] = {
        "head_dim": fields.count("global_head_dim", **WIDTH), "shares_projection": shares,
        **({"num_kv_heads": fields.count("num_global_key_value_heads", **WIDTH)} if shares else {}),
    }  # fmt: skip
    full = grouped(fields, number - sliding, "", qk_norm=True, num_extras=hidden, **wide)
    blocks = [full, grouped(fields, sliding, qk_norm=True, num_extras=hidden, window=window)]
    width = fields.count("intermediate_size", **WIDTH)
    blocks.append(block(number, "dense", intermediate_size=width, num_extras=hidden))
    if fields.flag("enable_moe_block"):  # with two more norms, and scales of the hidden state and of each expert
        extras = 3 * hidden + read_num_experts(fields)[0]
        blocks.append(experts(fields, number, corrects=False, num_extras=extras))
    return blocks


def _mimo_v2(fields: Fields) -> Blocks:
    number = num_layers_of(fields)
    sliding = fields.counts("hybrid_layer_pattern", most=1, most_values=number).count(1)
    window = fields.count("sliding_window", **WIDTH)
    full = grouped(fields, number - sliding, value_dim=fields.count("v_head_dim", **WIDTH))
    inner = grouped(
        fields, sliding, "swa_", window=window, value_dim=fields.count("swa_v_head_dim", **WIDTH),
        num_extras=fields.count("swa_num_attention_heads", **WIDTH),  # a sink for each
    )  # fmt: skip
    is_float32 = fields.data.get("moe_router_dtype", "float32") == "float32"
    return [full, inner, *mixed_mlps(fields, float32_router=is_float32)]


def _step3(fields: Fields) -> Blocks:
    """Its output is gated head by head."""
    gate = fields.count("num_attention_heads", **WIDTH) * fields.count("hidden_size", **WIDTH)
    return [*windowed(fields, qk_norm=True, num_extras=gate), *mixed_mlps(fields, float32_router=True)]


def _muse(fields: Fields) -> Blocks:
    hidden = fields.count("hidden_size", **WIDTH)
    width = fields.count("intermediate_size", **WIDTH)
    mlp = block(num_layers_of(fields), "dense", intermediate_size=width, num_extras=hidden)
    return [*windowed(fields, has_gate=True, num_extras=hidden), mlp]


def _nemotron_nas(fields: Fields) -> Blocks:
    heads, hidden = fields.count("num_attention_heads", **WIDTH), fields.count("hidden_size", **WIDTH)
    groups: Counter[int] = Counter()
    widths: Counter[int] = Counter()
    layers = fields.value("block_configs")
    for layer in layers if isinstance(layers, list) else ():
        attention, mlp = (Fields(layer, "block_configs").fields(key) for key in ("attention", "ffn"))
        if not attention.flag("no_op"):
            groups[attention.count("n_heads_in_group", **WIDTH)] += 1
        if not mlp.flag("no_op"):
            width = int(2 * mlp.number("ffn_mult", least=0.0, most=1e3) * hidden / 3)
            widths[-(-width // 256) * 256] += 1
    attentions = [
        grouped(fields, number, num_kv_heads=heads // group, head_dim=hidden // heads)
        for group, number in groups.items()
    ]
    return [*attentions, *(block(number, "dense", intermediate_size=width) for width, number in widths.items())]


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
    return tuple(each for each in READERS[architecture](fields) if each["number"])
