"""The format of a checkpoint's weights, as `model.quantization`, from its `config.json` or `hf_quant_config.json`.

Formats of which the tools say it in different words:

    fp8, fbgemm_fp8      float 8 bits, a scale per tensor or channel; with weight_block_size per block
    modelopt             quant_algo: FP8, FP8_PB_WO, NVFP4, W4A16_AWQ, W8A8_SQ_PER_CHANNEL
    compressed-tensors   config_groups: type, num_bits, strategy and group_size of weights and input_activations
    gptq, awq            bits and group_size
    mxfp4                experts only

What a format of `simulator.models.weight_formats` does not describe is refused by name: other widths, group sizes or
mixtures, and layers of attention or MLPs that the checkpoint leaves as they are. `model.quantization=...` then says
what to take.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.json_file import Fields, ModelError, read_json, shown

_BLOCK = [128, 128]
_GROUP = (128, -1, None)  # weights that share a scale; a whole row has fewer scales, which hardly weigh
_ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
    "W4A16_AWQ": "int4",
    "W8A8_SQ_PER_CHANNEL": "int8",
}
_EXCLUDED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
# Modules that no format of ours quantises.
_NEVER = (
    "lm_head",
    "embed",
    "norm",
    "router",
    "rotary",
    "sinks",
    "vision",
    "visual",
    "multi_modal",
    "e_score_correction",
)
_GATES = ("gate", "gate*", "gate$")  # of the experts; gate_proj is a layer of an MLP


def read_quantization(fields: Fields, *, has_experts: bool) -> str:
    """The value of `model.quantization` for a checkpoint whose weights are described by `fields`.

    Raises:
        ModelError: the format is none of `simulator.models.weight_formats`.
    """
    if not fields.data:
        return "none"
    name = _format_of(fields)
    if name == "mxfp4" and not has_experts:
        raise _not_known("mxfp4 of a model without experts")
    for key in _EXCLUDED:
        if fields.data.get(key) is not None:
            _check_excluded(fields, key, experts_only=name == "mxfp4")
    return name


def kv_cache_dtype_of(fields: Fields) -> tuple[str, tuple[str, ...]]:
    """The value of `model.kv_cache_dtype`, and the keys that ask for a KV cache that is not simulated: modelopt's
    `kv_cache_quant_algo`, or `kv_cache_scheme` of compressed-tensors and of modelopt's newer files."""
    algorithm, scheme = (fields.data.get(key) for key in ("kv_cache_quant_algo", "kv_cache_scheme"))
    if not algorithm and not scheme:
        return "auto", ()
    stored = (scheme.get("type"), scheme.get("num_bits")) if isinstance(scheme, Mapping) else None
    if algorithm == "FP8" or stored == ("float", 8):
        return "fp8", ()
    odd = f"kv_cache_quant_algo={shown(algorithm)}" if algorithm else f"kv_cache_scheme={shown(scheme)}"
    return "auto", (odd,)


def weights_description(path: Path, data: Mapping[str, Any]) -> Fields:
    """What a checkpoint says of the format of its weights and of its KV cache; empty where it says nothing.

    Args:
        path: of its `config.json`; modelopt writes `hf_quant_config.json` beside it.
        data: the contents of `config.json`.
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
    if bits != 4 or group_size not in _GROUP:
        raise _not_known(f"bits={shown(bits)}, group_size={shown(group_size)}")
    return "int4"


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
        case ("float", 4, 4) if weights.get("group_size") == 16:
            return "nvfp4"
    kind, bits, input_bits = map(shown, stored)
    raise _not_known(f"weights of type={kind}, num_bits={bits} with input_activations of num_bits={input_bits}")


def _check_excluded(fields: Fields, key: str, *, experts_only: bool) -> None:
    """Refuse a checkpoint that leaves layers of attention or MLPs as they are, which its format of ours quantises."""
    for name in fields.texts(key):
        lowered = name.lower()
        is_expected = any(part in lowered for part in _NEVER) or lowered.rpartition(".")[2] in _GATES
        if not is_expected and not (experts_only and "self_attn" in lowered):
            raise _not_known(f"{key} with {shown(name)}")


def _not_known(what: str) -> ModelError:
    return ModelError(f"weights in a format that cannot be simulated: {what}; model.quantization=... would replace it")
