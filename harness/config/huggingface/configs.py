"""Sizes of a model, read from the `config.json` of its Hugging Face folder for `model=hf model.config=<path>`.

What the architecture decides is in `harness.config.huggingface.families`, the format of the weights in
`harness.config.huggingface.weights`, models whose layers are not alike in `harness.config.huggingface.blocks`.
`layer_types`, where a file states it, says which layers have a window; rotary scaling makes the longest context longer.
Of a model with a tower for images or sound, the text half is read. What the simulator has no sizes for is refused by
name.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from engine.documents import user_path
from engine.json_file import Fields, ModelError, read_json, shown
from engine.model_sizes import MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, Sizes, read_num_experts, read_sizes
from harness.config.huggingface.blocks import READERS, num_layers_of, read_blocks
from harness.config.huggingface.families import FAMILIES, Family
from harness.config.huggingface.keys import TOWERS, other_keys
from harness.config.huggingface.towers import tower_parameters
from harness.config.huggingface.weights import PARTS, kv_cache_dtype_of, read_quantization, weights_description
from harness.errors import ConfigError
from harness.hub import PREFIX, model_config

_CONFIG = "config.json"
_OWN_KEYS = ("config", "hf_overrides")  # of model=hf, which no other model has
_PLAIN = Family()
_INNER = (*TOWERS, "text_config")
_Dtype = Literal["float32", "bfloat16", "float16"]


# What a key means if it is there and neither null, false, 0 nor empty.
_NOT_SUPPORTED = {
    "attention to compressed groups of tokens": ("compress_ratios",),
    "multi-head latent attention": ("kv_lora_rank", "q_lora_rank"),
    "sparse attention": ("index_topk", "index_n_heads", "sparse_attention_config"),
    "an encoder beside the decoder": ("is_encoder_decoder", "encoder_layers"),
    "state-space or linear-attention layers": (
        "ssm_state_size", "mamba_d_state", "mamba_num_heads", "hybrid_override_pattern", "linear_num_key_heads",
        "linear_attn_config", "full_attention_interval",
    ),
    "shared experts": (
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "shared_expert_intermediate_size",
        "shared_intermediate_size", "interleave_moe_layer_step",
    ),
    "dense layers among those with experts": ("first_k_dense_replace", "mlp_only_layers", "moe_layer_start_index"),
    "layers of different sizes": ("block_configs",),
    "keys and values shared by layers": ("use_cla", "num_kv_shared_layers"),
}  # fmt: skip
# Of a file with a `text_config`, what its text half may leave to the whole.
_COMMON = ("architectures", "dtype", "torch_dtype", "tie_word_embeddings")
_UNSCALED = ("default", "su", "longrope", "llama3", "mrope")  # max_position_embeddings is the longest context
_WINDOWED, _FULL = "sliding_attention", "full_attention"


def resolve_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `model` with those that `model.config` leaves to its file; a key that is given counts, null does not.

    Raises:
        ConfigError: the file cannot be read, or is of a model that the simulator does not know.
    """
    given = {key: value for key, value in model.items() if key not in _OWN_KEYS and value is not None}
    path, replaced = model["config"], model.get("hf_overrides") or {}
    if not isinstance(path, str) or not path:
        raise ConfigError(
            f"model.config={path!r}: must be the path of a {_CONFIG} or of the folder that holds it, or hf://<owner>/<model>"
        )
    if not isinstance(replaced, Mapping):
        raise ConfigError(f"model.hf_overrides={shown(replaced)}: must be keys of a {_CONFIG} with values")
    try:
        file = model_config(path) if path.startswith(PREFIX) else user_path(path)
        return _read_model(file, replaced, with_weights="quantization" not in given) | given
    except ModelError as error:
        raise ConfigError(f"model.config={path!r}: {error}") from None


def _read_model(path: Path, replaced: Mapping[str, Any], *, with_weights: bool) -> dict[str, Any]:
    """The keys of the group `model` for a `config.json` or the folder that holds one, with some of its keys `replaced`;
    raises ModelError."""
    if os.path.isdir(path):  # unlike Path.is_dir false for every path that cannot be one
        path /= _CONFIG
    data = _replaced(read_json(path), replaced)
    model = sizes_of(data)
    weights = weights_description(path, {**text_half(data), **data})
    if with_weights:
        model["quantization"], model["part_formats"] = read_quantization(weights, _num_parts(model))
    model["kv_cache_dtype"], odd = kv_cache_dtype_of(weights)
    model["tower_parameters"] = tower_parameters(data)
    others = other_keys(text_half(data), _rope_of(Fields(text_half(data), _CONFIG)).data, weights.data)
    model["ignored_keys"] = (*(key for key in TOWERS if data.get(key)), *others, *odd)
    return {"name": _name(path, data), **model}


def _num_parts(model: Mapping[str, Any]) -> dict[str, int]:
    """How many blocks have each part of the weights."""
    layers, numbers = model["num_layers"], Counter[str]()
    for block in model.get("blocks", ()):
        for part in PARTS[block["kind"]]:
            numbers[part] += block["number"]
    mlp = "experts" if model.get("num_experts") else "mlp"
    return dict(numbers) or dict.fromkeys(("attention", "attention_output", mlp), layers)


def _replaced(data: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a `config.json` with other values: as vLLM applies `--hf-overrides`, those of a configuration inside
    it are replaced one by one, and any other object as a whole."""
    inner = {key for key, value in values.items() if key in _INNER and isinstance(value, Mapping)}
    whole = {key: data[key] for key in inner if isinstance(data.get(key), Mapping)}
    return {**data, **values, **{key: _replaced(whole[key], values[key]) for key in whole}}


def text_half(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a `config.json` that describe the model of text: with those of `text_config`, where there is one."""
    text = data.get("text_config")
    if not isinstance(text, Mapping):
        return data
    common = {key: data[key] for key in _COMMON if data.get(key) is not None}
    return common | {key: value for key, value in text.items() if value is not None and key != "architectures"}


def sizes_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes in the contents of a `config.json`, as keys of the group `model`; raises ModelError."""
    names = Fields(data, _CONFIG).texts("architectures")
    if block_wise := next((name for name in names if name in READERS), None):
        return _sizes_by_block(block_wise, Fields(text_half(data), _CONFIG))
    _check_supported(data)
    family = _family_of(names)
    there = next((key for key in _INNER if data.get(key)), None)
    if there and not family.has_tower:
        raise ModelError(f"a tower for images or sound ({there}) cannot be simulated")
    fields = Fields({**family.defaults, **text_half(data)}, _CONFIG)
    sizes = read_sizes(fields, family.head_dim)
    model: dict[str, Any] = sizes._asdict() | {"dtype": _dtype_of(fields), "qk_norm": family.qk_norm != "none"}
    model |= _experts(fields, family)
    model["extra_layer_parameters"] = _extras(fields, family, sizes, model["num_experts"])
    model["max_position_embeddings"] = longest = longest_context(fields, family)
    return model | _windows(fields, family, sizes.num_layers, longest)


def _sizes_by_block(architecture: str, fields: Fields) -> dict[str, Any]:
    if fields.data.get("num_kv_shared_layers"):
        raise ModelError("keys and values shared by layers (num_kv_shared_layers) cannot be simulated")
    return {
        "num_layers": num_layers_of(fields),
        "hidden_size": fields.count("hidden_size", most=MOST_WIDTH),
        "vocab_size": fields.count("vocab_size", most=MOST_TOKENS),
        "tie_word_embeddings": fields.flag("tie_word_embeddings"),
        "max_position_embeddings": longest_context(fields),
        "dtype": _dtype_of(fields),
        "blocks": read_blocks(architecture, fields),
    }


def _check_supported(data: Mapping[str, Any]) -> None:
    """Raise ModelError for what the simulator has no sizes for."""
    text = data.get("text_config")  # where a tower feeds a language model, it has the sizes of that
    inner = text if isinstance(text, Mapping) else {}
    for what, keys in _NOT_SUPPORTED.items():
        if there := next((key for key in keys if data.get(key) or inner.get(key)), None):
            raise ModelError(f"{what} ({there}) cannot be simulated")


def _experts(fields: Fields, family: Family) -> dict[str, int]:
    if not family.experts_of:
        return {"num_experts": 0, "num_experts_per_token": 0, "moe_intermediate_size": 0}
    if (step := fields.count("decoder_sparse_step", 1, most=MOST_LAYERS)) != 1:
        raise ModelError(f"dense layers among those with experts (decoder_sparse_step={step}) cannot be simulated")
    num_experts, num_experts_per_token = read_num_experts(fields)
    return {
        "num_experts": num_experts,
        "num_experts_per_token": num_experts_per_token,
        "moe_intermediate_size": fields.count(family.experts_of, most=MOST_WIDTH),
    }


def _extras(fields: Fields, family: Family, sizes: Sizes, num_experts: int) -> int:
    """Parameters of a layer beside its matrices, two norms of the hidden state, and norms of one query and key head."""
    query, key = (heads * sizes.head_dim for heads in (sizes.num_attention_heads, sizes.num_kv_heads))
    extras = (family.num_norms - 2) * sizes.hidden_size
    if family.qk_norm == "heads":
        extras += query + key - 2 * sizes.head_dim
    if family.biases:
        mlp = 0 if num_experts else 2 * sizes.intermediate_size + sizes.hidden_size
        widths = (query + 2 * key, sizes.hidden_size, mlp)
        extras += sum(width for name, width in zip(family.biases, widths, strict=True) if fields.flag(name))
    return extras


def _rope_of(fields: Fields) -> Fields:
    """Rotary options, those of layers without a window where they differ; `rope_scaling` in transformers 4."""
    rope = fields.fields("rope_parameters" if fields.data.get("rope_parameters") else "rope_scaling")
    return rope.fields(_FULL) if _FULL in rope.data else rope


def longest_context(fields: Fields, family: Family = _PLAIN) -> int:
    """The longest context, which rotary scaling makes longer; as in vLLM (`_get_and_verify_max_len`).

    Raises:
        ModelError: `max_position_embeddings` or a rotary option is missing or out of range.
    """
    positions = fields.count("max_position_embeddings", most=MOST_TOKENS)
    rope = _rope_of(fields)
    kind = rope.data.get("rope_type", rope.data.get("type", "default"))
    if kind in _UNSCALED or not rope.data or family.scaled_positions:
        return positions
    if kind == "yarn":
        positions = rope.count("original_max_position_embeddings", positions, most=MOST_TOKENS)
    return min(int(positions * rope.number("factor", 1.0, least=1.0, most=1e6)), MOST_TOKENS)


def _family_of(names: Sequence[str]) -> Family:
    for name in names:
        if name in FAMILIES:
            return FAMILIES[name]
    known = ", ".join(dict.fromkeys(name.partition("For")[0] for name in (*FAMILIES, *READERS)))
    raise ModelError(f"architecture {shown(names)} is not known, only {known}")


def _dtype_of(fields: Fields) -> str:
    """`dtype` (transformers 5) or `torch_dtype` (4); bfloat16 where neither is given, which engines then serve."""
    dtype = fields.data.get("dtype") or fields.data.get("torch_dtype") or "bfloat16"
    if dtype not in get_args(_Dtype):
        raise ModelError(f"{_CONFIG}: dtype={shown(dtype)}: must be {', '.join(get_args(_Dtype))}")
    return str(dtype)


def _windows(fields: Fields, family: Family, num_layers: int, longest: int) -> dict[str, int]:
    """The window and the number of layers that have it; a window as long as the longest context counts as none."""
    none = {"sliding_window": 0, "num_sliding_layers": 0}
    if fields.data.get("sliding_window") is None or family.windows == "none":
        return none
    is_typed = fields.data.get("layer_types") is not None
    if not fields.flag("use_sliding_window") and (
        family.windows == "late" or (family.windows == "typed" and not is_typed)
    ):
        return none
    window = fields.count("sliding_window", most=MOST_TOKENS)
    num_sliding = _num_sliding(fields, family, num_layers)
    return {"sliding_window": window, "num_sliding_layers": num_sliding} if window < longest and num_sliding else none


def _num_sliding(fields: Fields, family: Family, num_layers: int) -> int:
    if fields.data.get("layer_types") is not None:
        kinds = fields.texts("layer_types")
        if other := next((kind for kind in kinds if kind not in (_WINDOWED, _FULL)), None):
            raise ModelError(f"layers of type {shown(other)} cannot be simulated")
        if len(kinds) != num_layers:
            raise ModelError(f"{_CONFIG}: layer_types has {len(kinds)} values for {num_layers} layers")
        return list(kinds).count(_WINDOWED)
    if family.windows == "late":
        return max(0, num_layers - fields.count("max_window_layers", num_layers, least=0, most=MOST_LAYERS))
    if family.windows == "typed":
        raise ModelError(f"{_CONFIG}: sliding_window without layer_types, which say what layers have it")
    return num_layers - num_layers // _period(fields, family) if family.windows == "periodic" else num_layers


def _period(fields: Fields, family: Family) -> int:
    """Every how many layers one has no window: stated as a number, or as a pattern such as `LLLG`, by its length."""
    pattern = fields.data.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern == "L" * (len(pattern) - 1) + "G":
        return len(pattern)
    return fields.count("sliding_window_pattern", family.period, most=MOST_LAYERS)


def _name(path: Path, data: Mapping[str, Any]) -> str:
    """The model's name: of its folder, of its place in the hub's cache, or of a file that is not called config.json."""
    hub = next((part for part in reversed(path.absolute().parts) if part.startswith("models--")), None)
    if hub:
        return hub.removeprefix("models--").replace("--", "/")
    if path.name != _CONFIG:
        return path.stem.removesuffix("_config").replace("--", "/")
    return path.absolute().parent.name or str(data["architectures"][0])
