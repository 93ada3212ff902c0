"""The format of a checkpoint's weights, as `model.quantization`, from its `config.json` or `hf_quant_config.json`.

Formats of which the tools say it in different words:

    fp8, fbgemm_fp8      float 8 bits, a scale per tensor or channel; with weight_block_size per block
    modelopt             quant_algo: FP8, FP8_PB_WO, NVFP4, W4A16_AWQ, W8A8_SQ_PER_CHANNEL
    compressed-tensors   config_groups: type, num_bits, strategy and group_size of weights and input_activations
    gptq, awq            bits and group_size
    mxfp4                experts only

A part of the weights that a checkpoint leaves as it is in most layers is not quantised; one that it leaves so in a few
counts as quantised. What a format of `simulator.models.weight_formats` does not describe is refused by name: other
widths or group sizes. `model.quantization=...` then says what to take.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.json_file import Fields, ModelError, read_json, shown

_BLOCK = [128, 128]
_GROUPS = {
    128: "int4",
    -1: "int4",
    None: "int4",
    32: "int4_32",
}  # weights that share a scale; a whole row has fewer scales, which hardly weigh
_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4_w4a16",
    "W4A16_AWQ": "int4",
    "W8A8_SQ_PER_CHANNEL": "int8",
}
_EXCLUDED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
_LAYER = re.compile(r"\.(\d+)(\.|\*|$)")
# The parts of the weights (`harness.config.ModelConfig`) that a kind of block has.
_ATTENTION = ("attention", "attention_output")
PARTS = {
    "grouped_query": _ATTENTION,
    "latent": (*_ATTENTION, "indexer"),
    "gated_delta_net": ("linear_attention",),
    "kimi_delta": ("linear_attention",),
    "mamba2": ("linear_attention",),
    "dense": ("mlp",),
    "experts": ("experts", "shared_experts", "latent_experts"),
}
# Which parts a module of a checkpoint is of, by the first pattern that its name has; small modules are of none.
_MODULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        r"vis|mtp|(^|[._])head|embed|norm|router|gate$|gate\*$|rotary|sinks|conv|_proj_[ab]|in_proj_[ab]$|bias|indexers_proj",
        (),
    ),
    (r"indexer(\*|$)|indexer\.wq_b", ("indexer",)),
    (r"indexer", ()),
    (r"linear_attn|mixer\.(in|out)_proj", ("linear_attention",)),
    (r"shared_expert", ("shared_experts",)),
    (r"experts", ("experts",)),
    (r"o_proj", ("attention_output",)),
    (r"(self_attn|attn|attention)(\.?\*|\.\*.*|$)", _ATTENTION),
    (r"\.(q|qkv|q_a|q_b|kv_b)_proj", ("attention",)),
    (r"(^|\.)mlp(\.?\*|$)|(gate_up|gate|up|down).*_proj", ("mlp",)),
)


def read_quantization(fields: Fields, num_parts: Mapping[str, int]) -> tuple[str, dict[str, str]]:
    """The values of `model.quantization` and of `model.part_formats` for a checkpoint whose weights are described by
    `fields`; `num_parts`: how many blocks have each part of the weights.

    Raises:
        ModelError: the format is none of `simulator.models.weight_formats`.
    """
    if not fields.data:
        return "none", {}
    if fields.data.get("quant_algo") == "MIXED_PRECISION":
        return _mixed(fields, num_parts)
    name = _format_of(fields)
    if name == "mxfp4" and "experts" not in num_parts:
        raise _not_known("mxfp4 of a model without experts")
    modules = [module for key in _EXCLUDED if fields.data.get(key) is not None for module in fields.texts(key)]
    layers = {
        (part, match and match[1])
        for module in modules
        for match in [_LAYER.search(module)]
        for part in _parts_of(module)
    }
    in_all, numbers = {part for part, layer in layers if layer is None}, Counter(part for part, _ in layers)
    if name == "mxfp4":
        return name, {}
    return name, {part: "none" for part, number in num_parts.items() if part in in_all or numbers[part] > number / 2}


def _parts_of(module: str) -> tuple[str, ...]:
    return next((parts for pattern, parts in _MODULES if re.search(pattern, module.lower())), ())


def _mixed(fields: Fields, num_parts: Mapping[str, int]) -> tuple[str, dict[str, str]]:
    """Formats that modelopt names for each module; parts of which it names none are not quantised."""
    named = dict.fromkeys(num_parts, "none")
    layers = fields.fields("quantized_layers")
    if not layers.data:
        raise _not_known("quant_algo='MIXED_PRECISION' without quantized_layers")
    for module in layers.data:
        algorithm = layers.fields(module).value("quant_algo")
        for part in _parts_of(module):
            if algorithm not in _ALGORITHMS:
                raise _not_known(f"quant_algo={shown(algorithm)} of {module}")
            if part in named:
                named[part] = _ALGORITHMS[algorithm]
    if named.get("attention_output") == "none":
        named["attention_output"] = named.get("attention", "none")
    main = named["experts" if "experts" in named else "mlp"]
    return main, {part: name for part, name in named.items() if name != main}


def kv_cache_dtype_of(fields: Fields) -> tuple[str, tuple[str, ...]]:
    """The value of `model.kv_cache_dtype`, and the keys that ask for a KV cache that is not simulated: modelopt's
    `kv_cache_quant_algo`, or `kv_cache_scheme` of compressed-tensors and of modelopt's newer files."""
    algorithm, scheme = (fields.data.get(key) for key in ("kv_cache_quant_algo", "kv_cache_scheme"))
    if not algorithm and not scheme:
        return "auto", ()
    stored = (scheme.get("type"), scheme.get("num_bits")) if isinstance(scheme, Mapping) else None
    if "FP8" in (algorithm, scheme) or stored == ("float", 8):
        return "fp8", ()
    odd = f"kv_cache_quant_algo={shown(algorithm)}" if algorithm else f"kv_cache_scheme={shown(scheme)}"
    return "auto", (odd,)


def weights_description(path: Path, data: Mapping[str, Any]) -> Fields:
    """What a checkpoint says of the format of its weights and of its KV cache; empty where it says nothing.

    Args:
        path: of its `config.json`; modelopt writes `hf_quant_config.json` beside it.
        data: the contents of `config.json`, or of its text half where that says it.
    """
    beside = path.with_name(path.name.replace("config.json", "hf_quant_config.json"))
    for key in ("quantization_config", "compression_config"):
        if data.get(key) is not None:
            return Fields(data, "config.json").fields(key)
    if beside != path and beside.exists():
        return Fields(read_json(beside), beside.name).fields("quantization")
    return Fields({}, path.name)


def _format_of(fields: Fields) -> str:
    method = fields.data.get("quant_method") or "modelopt"
    algorithm = fields.data.get("quant_algo")
    match method:
        case "mxfp4":
            return "mxfp4"
        case "fp8" | "fbgemm_fp8" if algorithm is None:
            return _fp8(fields.data.get("weight_block_size"))
        case "gptq" | "awq" | "gptq_marlin" | "awq_marlin":
            return _int4(fields.data.get("bits", fields.data.get("w_bit")), fields.data.get("group_size"))
        case "compressed-tensors":
            return _compressed(fields)
        case "modelopt" | "modelopt_fp4" | "modelopt_fp8" if isinstance(algorithm, str) and algorithm in _ALGORITHMS:
            name = _ALGORITHMS[algorithm]
            return _int4(4, fields.data.get("group_size")) if name == "int4" else name
    raise _not_known(f"quant_method={shown(method)}" + (f", quant_algo={shown(algorithm)}" if algorithm else ""))


def _fp8(block: object) -> str:
    if block is None:
        return "fp8"
    if block != _BLOCK:
        raise _not_known(f"weight_block_size={shown(block)}")
    return "fp8_block"


def _int4(bits: object, group_size: object) -> str:
    name = _GROUPS.get(group_size) if isinstance(group_size, int | None) else None
    if bits != 4 or name is None:
        raise _not_known(f"bits={shown(bits)}, group_size={shown(group_size)}")
    return name


def _compressed(fields: Fields) -> str:
    """The one format of all groups of a compressed-tensors checkpoint."""
    groups = fields.fields("config_groups")
    names = {_of_group(groups.fields(key)) for key in groups.data}
    if len(names) != 1:
        raise _not_known(f"config_groups in {' and '.join(sorted(names)) or 'no format'}")
    return names.pop()


def _of_group(group: Fields) -> str:
    weights, inputs = group.fields("weights").data, group.fields("input_activations").data
    stored = (weights.get("type"), weights.get("num_bits"), inputs.get("num_bits"))
    match stored:
        case ("float", 8, 8):
            return _fp8(weights.get("block_structure") if weights.get("strategy") == "block" else None)
        case ("int", 8, 8):
            return "int8"
        case ("int", 4, None):
            return _int4(4, weights.get("group_size"))
        case ("float", 4, None) if weights.get("group_size") == 32:
            return "mxfp4"
        case ("float", 4, 4) if weights.get("group_size") == 16:
            return "nvfp4"
    kind, bits, input_bits = map(shown, stored)
    raise _not_known(f"weights of type={kind}, num_bits={bits} with input_activations of num_bits={input_bits}")


def _not_known(what: str) -> ModelError:
    return ModelError(f"weights in a format that cannot be simulated: {what}; model.quantization=... would replace it")
