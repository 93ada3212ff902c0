"""How rotary embeddings are stretched to longer contexts, read from `config.json`. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.json_file import Fields, ModelError, shown
from engine.model_sizes import MOST_TOKENS


@dataclass(frozen=True)
class Llama3RopeScaling:
    """How Llama 3.1 stretches the wavelengths of its rotary embedding beyond `original_max_position_embeddings`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class YarnRopeScaling:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): wavelengths with fewer than `beta_slow` turns in
    `original_max_position_embeddings` are stretched by `factor`, those with more than `beta_fast` are kept.

    Attributes:
        truncate: whether the two bounds between which frequencies are interpolated are whole dimensions.
        attention_factor: factor of cosines and sines, hence of rotated queries and keys.
        score_factor: DeepSeek's factor of all scores before the softmax.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float
    score_factor: float


RopeScaling = Llama3RopeScaling | YarnRopeScaling


def read_rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """(base of the wavelengths, how they are stretched) in a `config.json`.

    The options are in `rope_parameters` of transformers 5, or in `rope_scaling` of transformers 4.

    Raises:
        ModelError: an option is missing or out of range, or the kind of stretching is not supported.
    """
    parameters = fields.fields("rope_parameters")
    rope = parameters if parameters.data else fields.fields("rope_scaling")
    has_theta = rope.data.get("rope_theta") is not None
    theta = (rope if has_theta else fields).number("rope_theta", 1e4, least=1.0, most=1e15)
    kind = rope.data.get("rope_type", rope.data.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind == "llama3":
        return theta, _read_llama3(rope)
    if kind == "yarn":
        return theta, _read_yarn(rope)
    raise ModelError(f"config.json: rope_type={shown(kind)} is not supported, only 'default', 'llama3' and 'yarn'")


def _read_llama3(rope: Fields) -> Llama3RopeScaling:
    low = rope.number("low_freq_factor", least=1e-6, most=1e6)
    high = rope.number("high_freq_factor", least=1e-6, most=1e6)
    if high <= low:
        raise ModelError(f"{rope.where}: high_freq_factor={high:g} must be larger than low_freq_factor={low:g}")
    return Llama3RopeScaling(
        factor=rope.number("factor", least=1.0, most=1e6),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=rope.count("original_max_position_embeddings", most=MOST_TOKENS),
    )


def _read_yarn(rope: Fields) -> YarnRopeScaling:
    """With the defaults of transformers (`modeling_rope_utils._compute_yarn_parameters`)."""
    factor = rope.number("factor", least=1.0, most=1e6)
    mscale, mscale_all_dim = (rope.number(key, 0.0, least=0.0, most=1e3) for key in ("mscale", "mscale_all_dim"))

    def magnified(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0

    default = magnified(mscale) / magnified(mscale_all_dim) if mscale and mscale_all_dim else magnified(1.0)
    return YarnRopeScaling(
        factor=factor,
        original_max_position_embeddings=rope.count("original_max_position_embeddings", most=MOST_TOKENS),
        beta_fast=rope.number("beta_fast", 32.0, least=1e-6, most=1e6),
        beta_slow=rope.number("beta_slow", 1.0, least=1e-6, most=1e6),
        truncate=rope.data.get("truncate") is None or rope.flag("truncate"),
        attention_factor=rope.number("attention_factor", default, least=1e-6, most=1e6),
        score_factor=magnified(mscale_all_dim) ** 2,
    )
