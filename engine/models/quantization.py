"""Float8 weights of a model: what a checkpoint's `quantization_config` says of them. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from engine.engine_config import Quantized
from engine.json_file import Fields, ModelError, shown

_ONLINE_BLOCK = (128, 128)  # of weights that are quantised as they are loaded
_BLOCK_SIZES = (32, 64, 128, 256, 512)
# Ends of the names of modules that stay in the model's dtype here, too; `.gate` is the router of experts.
_NEVER_QUANTIZED = ("lm_head", ".gate", "embed_tokens", "norm", "layernorm")
_ENDS_OF_PATTERNS = "$*"  # stripped before names are compared, as of the pattern re:.*mlp.gate$


@dataclass(frozen=True)
class Fp8Weights:
    """Weights of attention's projections and of the MLPs, experts included, in 8 bits (e4m3), with float32 scales.

    Attributes:
        block: rows and columns of a weight matrix that share a scale; None: a scale per output channel.
        scale_name: the end of the names of the checkpoint's scales; None: the checkpoint is not quantised, and weights
            are quantised as they are loaded.
        per_tensor: whether the checkpoint has a single scale per tensor, which all its channels get.
    """

    block: tuple[int, int] | None = None
    scale_name: Literal["weight_scale", "weight_scale_inv"] | None = None
    per_tensor: bool = False

    @property
    def name(self) -> Quantized:
        return "fp8" if self.block is None else "fp8_block"

    def matrix_block(self, columns: int) -> tuple[int, int]:
        """Rows and columns that share a scale in a matrix of so many columns."""
        return (1, columns) if self.block is None else self.block


def chosen(own: Fp8Weights | None, wanted: Quantized | None, *, is_random: bool) -> Fp8Weights | None:
    """The float8 weights of an engine that asks for the format `wanted`, where the checkpoint has `own`.

    None takes the checkpoint's. Random weights are quantised like those of a checkpoint that is not quantised.

    Raises:
        ModelError: the checkpoint's weights have another format.
    """
    if wanted is None or wanted == ("none" if own is None else own.name):
        return replace(own, scale_name=None, per_tensor=False) if own is not None and is_random else own
    if own is not None:
        raise ModelError(f"quantization={wanted}: the weights of the checkpoint are {own.name}")
    return Fp8Weights(_ONLINE_BLOCK if wanted == "fp8_block" else None)


def read_quantization(config: Fields) -> Fp8Weights | None:
    """Float8 weights as `quantization_config` in `config.json` states them; None without that key.

    Raises:
        ModelError: another method or option than those that are read here.
    """
    fields = config.fields("quantization_config")
    if not fields.data:
        return None
    method = fields.data.get("quant_method")
    if method == "fp8":
        weights = _read_fp8(fields)
    elif method == "compressed-tensors":
        weights = _read_compressed_tensors(fields)
    else:
        raise _unsupported(fields, "quant_method", "'fp8' and 'compressed-tensors'")
    for key in ("modules_to_not_convert", "ignored_layers", "ignore"):
        for name in fields.texts(key) if fields.data.get(key) is not None else ():
            if not name.rstrip(_ENDS_OF_PATTERNS).endswith(_NEVER_QUANTIZED):
                raise ModelError(f"{fields.where}: {key} names {shown(name)}: only whole models are read")
    return weights


def _read_fp8(fields: Fields) -> Fp8Weights:
    _require(fields, "activation_scheme", "dynamic")
    _require(fields, "fmt", "e4m3")
    if fields.data.get("weight_block_size") is None:
        return Fp8Weights(scale_name="weight_scale", per_tensor=True)
    block = fields.counts("weight_block_size", most=_BLOCK_SIZES[-1], most_values=2)
    return Fp8Weights(_checked_block(fields, block), "weight_scale_inv")


def _read_compressed_tensors(fields: Fields) -> Fp8Weights:
    _require(fields, "format", "float-quantized")
    groups = fields.fields("config_groups")
    if len(groups.data) != 1:
        raise ModelError(f"{groups.where} has {len(groups.data)} groups: only one is supported")
    group = groups.fields(next(iter(groups.data)))
    weights, inputs = group.fields("weights"), group.fields("input_activations")
    for part in (weights, inputs):
        _require(part, "num_bits", 8)
        _require(part, "type", "float")
    _require(inputs, "dynamic", True)
    _require(weights, "symmetric", True)
    strategy = weights.data.get("strategy")
    if strategy == "block":
        block = weights.counts("block_structure", most=_BLOCK_SIZES[-1], most_values=2)
        return Fp8Weights(_checked_block(weights, block), "weight_scale")
    if strategy not in ("channel", "tensor"):
        raise _unsupported(weights, "strategy", "'channel', 'tensor' and 'block'")
    return Fp8Weights(scale_name="weight_scale", per_tensor=strategy == "tensor")


def _checked_block(fields: Fields, block: tuple[int, ...]) -> tuple[int, int]:
    if len(block) != 2 or not set(block) <= set(_BLOCK_SIZES):
        sizes = ", ".join(map(str, _BLOCK_SIZES))
        raise ModelError(f"{fields.where}: blocks of {list(block)} weights: must be two of {sizes}")
    return block[0], block[1]


def _require(fields: Fields, key: str, supported: object) -> None:
    """Refuse another value; a missing one counts as supported."""
    if fields.data.get(key, supported) != supported:
        raise _unsupported(fields, key, repr(supported))


def _unsupported(fields: Fields, key: str, supported: str) -> ModelError:
    return ModelError(f"{fields.where}: {key}={shown(fields.data.get(key))} is not supported, only {supported}")
