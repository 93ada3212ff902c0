"""Shape of a model, read from Hugging Face's `config.json`. Imports no torch: the harness reads shapes without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

Family = Literal["qwen3", "qwen3_moe", "qwen2", "llama"]
Dtype = Literal["float32", "bfloat16", "float16"]

_ARCHITECTURES: dict[str, Family] = {
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen2ForCausalLM": "qwen2",
    "LlamaForCausalLM": "llama",
}
# Keys of `config.json` of which the layers implement one value only.
_FIXED_VALUES: dict[str, Any] = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}


class ModelError(ValueError):
    """A model that cannot be built or loaded; the message is one line that names what is wrong."""


@dataclass(frozen=True)
class Llama3RopeScaling:
    """How Llama 3.1 stretches the wavelengths of its rotary embedding beyond `original_max_position_embeddings`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder-only transformer; sizes are counts of elements.

    Attributes:
        attention_bias: whether all four projections of attention have biases. Qwen2 ignores it: only its projections to
            q, k and v have biases.
        num_experts: 0 for a dense model, whose other expert fields have no meaning.
        norm_topk_prob: whether the weights of a token's chosen experts are scaled to sum to 1.
        decoder_sparse_step, mlp_only_layers: which layers have experts; see `has_experts`.
        initializer_range: standard deviation of random weights.
        dtype: dtype of the checkpoint; `EngineConfig.dtype` may choose another one for the engine.
        eos_token_ids: tokens that end an answer; empty if the model has none.
    """

    family: Family
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3RopeScaling | None
    tie_word_embeddings: bool
    attention_bias: bool
    dtype: Dtype
    initializer_range: float = 0.02
    eos_token_ids: tuple[int, ...] = ()
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()

    def has_experts(self, layer: int) -> bool:
        """Whether the MLP of a layer (counted from 0) is a mixture of experts."""
        sparse = self.num_experts > 0 and (layer + 1) % self.decoder_sparse_step == 0
        return sparse and layer not in self.mlp_only_layers

    @classmethod
    def load(cls, folder: str | Path) -> ModelConfig:
        """Read `config.json` of a model folder.

        EOS tokens in `generation_config.json`, where the folder has this file, replace those of `config.json`.

        Raises:
            ModelError: the folder or the file is missing, a file is not JSON, or `from_hf` refuses its contents.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ModelError(f"{folder}: no such model folder")
        data = read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        if generation.is_file():
            eos = read_json(generation).get("eos_token_id")
            data = data if eos is None else {**data, "eos_token_id": eos}
        return cls.from_hf(data)

    @classmethod
    def from_hf(cls, data: Mapping[str, Any]) -> ModelConfig:
        """From the contents of a `config.json`, as transformers 4 or 5 write it.

        Raises:
            ModelError: a key is missing, or the architecture or an option of it is not supported.
        """
        family = _family_of(data)
        for key, supported in _FIXED_VALUES.items():
            if data.get(key, supported) not in (supported, None):
                raise ModelError(f"config.json: {key}={data[key]!r} is not supported, only {supported!r}")
        heads = _get(data, "num_attention_heads")
        hidden_size = _get(data, "hidden_size")
        config = cls(
            family=family,
            num_layers=_get(data, "num_hidden_layers"),
            hidden_size=hidden_size,
            num_attention_heads=heads,
            num_kv_heads=data.get("num_key_value_heads") or heads,
            head_dim=data.get("head_dim") or (128 if family == "qwen3" else hidden_size // heads),
            intermediate_size=_get(data, "intermediate_size"),
            vocab_size=_get(data, "vocab_size"),
            max_position_embeddings=_get(data, "max_position_embeddings"),
            rms_norm_eps=data.get("rms_norm_eps", 1e-6),
            rope_theta=_rope(data).get("rope_theta") or data.get("rope_theta") or 10000.0,
            rope_scaling=_rope_scaling(data),
            tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
            attention_bias=bool(data.get("attention_bias", False)),
            dtype=_dtype_of(data),
            initializer_range=data.get("initializer_range", 0.02),
            eos_token_ids=_eos_token_ids(data),
            **(_expert_fields(data) if family == "qwen3_moe" else {}),
        )
        if heads % config.num_kv_heads:
            raise ModelError(f"config.json: num_key_value_heads={config.num_kv_heads} does not divide {heads} heads")
        return config

    @classmethod
    def from_shape(cls, model: Mapping[str, Any]) -> ModelConfig:
        """From the fields of a `conf/model/*.yaml` file; see `hf_config`."""
        return cls.from_hf(hf_config(model))


def hf_config(model: Mapping[str, Any]) -> dict[str, Any]:
    """A `config.json` for the fields of a `conf/model/*.yaml` file, for a model with random weights.

    The file states shapes only; all other values are those of the family's published models. The model has no EOS
    token, because a random one would end answers at random. The family is the optional field `family`; without it, the
    family is guessed from `name`.

    Raises:
        ModelError: the family is not supported, or the model has learned positions.
    """
    family = model.get("family") or _guess_family(model)
    if family not in get_args(Family):
        raise ModelError(f"family={family!r} is not supported, only {', '.join(get_args(Family))}")
    if positions := model.get("learned_positions"):
        raise ModelError(f"learned_positions={positions} is not supported by the real engine; use engine=sim")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1_000_000.0}
    if family == "llama":
        rope = {"rope_type": "default", "rope_theta": 500_000.0}
        if model["max_position_embeddings"] > 8192:  # Llama 3.1 and later
            scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            rope |= {"rope_type": "llama3", "original_max_position_embeddings": 8192, **scaling}
    config = {
        "architectures": [name for name, value in _ARCHITECTURES.items() if value == family],
        "model_type": family,
        "num_hidden_layers": model["num_layers"],
        "num_key_value_heads": model["num_kv_heads"],
        "rms_norm_eps": 1e-5 if family == "llama" else 1e-6,
        "rope_parameters": rope,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    same = ("hidden_size", "num_attention_heads", "head_dim", "intermediate_size", "vocab_size", "dtype")
    config |= {key: model[key] for key in (*same, "tie_word_embeddings", "max_position_embeddings")}
    if family == "qwen3_moe":
        experts = {"num_experts_per_tok": model["num_experts_per_token"], "norm_topk_prob": True}
        config |= {"num_experts": model["num_experts"], "moe_intermediate_size": model["moe_intermediate_size"]}
        config |= {**experts, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return config


def _guess_family(model: Mapping[str, Any]) -> str:
    name = str(model["name"]).lower()
    if "llama" in name:
        return "llama"
    if "qwen2" in name:
        return "qwen2"
    return "qwen3_moe" if model.get("num_experts") else "qwen3"


def read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path}: not a JSON object")
    return data


def _get(data: Mapping[str, Any], key: str) -> Any:
    if data.get(key) is None:
        raise ModelError(f"config.json: {key} is missing")
    return data[key]


def _family_of(data: Mapping[str, Any]) -> Family:
    names = _get(data, "architectures")
    for name in names:
        if name in _ARCHITECTURES:
            return _ARCHITECTURES[name]
    raise ModelError(f"config.json: architecture {', '.join(names)} is not supported, only {', '.join(_ARCHITECTURES)}")


def _rope(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rotary options: `rope_parameters` of transformers 5, or `rope_scaling` of transformers 4."""
    return data.get("rope_parameters") or data.get("rope_scaling") or {}


def _rope_scaling(data: Mapping[str, Any]) -> Llama3RopeScaling | None:
    rope = _rope(data)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(f"config.json: rope_type={kind!r} is not supported, only 'default' and 'llama3'")
    return Llama3RopeScaling(**{key: _get(rope, key) for key in Llama3RopeScaling.__dataclass_fields__})


def _dtype_of(data: Mapping[str, Any]) -> Dtype:
    """`dtype` (transformers 5) or `torch_dtype` (4); float32 where neither is given, as in transformers."""
    dtype: Any = data.get("dtype") or data.get("torch_dtype") or "float32"
    if dtype not in get_args(Dtype):
        raise ModelError(f"config.json: dtype={dtype!r} is not supported, only {', '.join(get_args(Dtype))}")
    return dtype


def _eos_token_ids(data: Mapping[str, Any]) -> tuple[int, ...]:
    eos = data.get("eos_token_id")
    return () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)


def _expert_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    num_experts = data.get("num_experts") or data.get("num_local_experts")  # the name in transformers 5
    return {
        "num_experts": num_experts or _get(data, "num_experts"),
        "num_experts_per_token": _get(data, "num_experts_per_tok"),
        "moe_intermediate_size": _get(data, "moe_intermediate_size"),
        "norm_topk_prob": bool(data.get("norm_topk_prob", False)),
        "decoder_sparse_step": data.get("decoder_sparse_step") or 1,
        "mlp_only_layers": tuple(data.get("mlp_only_layers") or ()),
    }
