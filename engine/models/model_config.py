"""Shape of a model, read from Hugging Face's `config.json`. Imports no torch: the harness reads shapes without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from engine.json_file import Fields, read_json, shown
from engine.json_file import ModelError as ModelError  # also imported from here
from engine.model_sizes import MOST_LAYERS, MOST_TOKENS, MOST_WIDTH, read_num_experts, read_sizes
from engine.models.quantization import Fp8Weights, read_quantization

Family = Literal["qwen3", "qwen3_moe", "qwen2", "llama", "mistral"]
Dtype = Literal["float32", "bfloat16", "float16"]

_ARCHITECTURES: dict[str, Family] = {
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen2ForCausalLM": "qwen2",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
}
# Keys of `config.json` of which the layers implement one value only.
_FIXED_VALUES: dict[str, Any] = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
}


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
        sliding_window: how many of the last tokens each token sees, itself included; 0 for all.
        initializer_range: standard deviation of random weights.
        dtype: dtype of the checkpoint; `EngineConfig.dtype` may choose another one for the engine.
        eos_token_ids: tokens that end an answer; empty if the model has none.
        fp8: float8 weights of attention's projections and of the MLPs, experts included; None: they are in `dtype`.
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
    fp8: Fp8Weights | None = None
    sliding_window: int = 0

    @property
    def num_sliding_layers(self) -> int:
        """Layers that have the window."""
        return self.num_layers if self.sliding_window else 0

    @property
    def qk_norm(self) -> bool:
        """Whether each head of query and key is normed."""
        return self.family in ("qwen3", "qwen3_moe")

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
        check_folder(folder)
        config = cls.from_hf(read_json(folder / "config.json"))
        generation = folder / "generation_config.json"
        if generation.exists():
            eos = _eos_token_ids(Fields(read_json(generation), generation.name))
            config = replace(config, eos_token_ids=eos) if eos else config
        return config

    @classmethod
    def from_hf(cls, data: Mapping[str, Any]) -> ModelConfig:
        """From the contents of a `config.json`, as transformers 4 or 5 write it.

        Raises:
            ModelError: a key is missing, a value has the wrong type or is out of range, or the architecture or an
                option of it is not supported.
        """
        fields = Fields(data, "config.json")
        family = _family_of(fields)
        for key, supported in _FIXED_VALUES.items():
            if data.get(key, supported) not in (supported, None):
                raise ModelError(f"config.json: {key}={shown(data[key])} is not supported, only {supported!r}")
        return cls(
            family=family,
            **read_sizes(fields, 128 if family == "qwen3" else None)._asdict(),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6, least=1e-30, most=1.0),
            rope_theta=_rope_theta(fields),
            rope_scaling=_rope_scaling(_rope(fields)),
            attention_bias=family != "mistral" and fields.flag("attention_bias"),
            dtype=_dtype_of(fields),
            initializer_range=fields.number("initializer_range", 0.02, least=0.0, most=1e3),
            eos_token_ids=_eos_token_ids(fields),
            fp8=read_quantization(fields),
            sliding_window=_sliding_window(fields) if family == "mistral" else 0,
            **(_expert_fields(fields) if family == "qwen3_moe" else {}),
        )

    @classmethod
    def from_shape(cls, model: Mapping[str, Any]) -> ModelConfig:
        """From the fields of a `conf/model/*.yaml` file; see `hf_config`."""
        return cls.from_hf(hf_config(model))


def hf_config(model: Mapping[str, Any]) -> dict[str, Any]:
    """A `config.json` for the fields of a `conf/model/*.yaml` file, for a model with random weights.

    The file states shapes only; all other values are those of the family's published models. The model has no EOS
    token, because a random one would end answers at random. The family is the optional field `family`; without it, the
    family is guessed from `name`, and for other names from `qk_norm`.

    Raises:
        ModelError: a field is missing, the family is not supported, or the model has learned positions, windows, or
            parameters that the family has not.
    """
    fields = Fields(model, "model")
    family = model.get("family") or _guess_family(model)
    if family not in get_args(Family):
        raise ModelError(f"family={family!r} is not supported, only {', '.join(get_args(Family))}")
    for key in ("learned_positions", "sliding_window", "extra_layer_parameters"):
        is_window_of_all = key == "sliding_window" and model.get("num_sliding_layers") == model.get("num_layers")
        if model.get(key) and not (family == "mistral" and is_window_of_all):
            raise ModelError(f"{key}={model[key]} is not supported by the real engine; use engine=sim")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1_000_000.0}
    if family == "llama":
        rope = {"rope_type": "default", "rope_theta": 500_000.0}
        if fields.count("max_position_embeddings", most=MOST_TOKENS) > 8192:  # Llama 3.1 and later
            scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            rope |= {"rope_type": "llama3", "original_max_position_embeddings": 8192, **scaling}
    config = {
        "architectures": [name for name, value in _ARCHITECTURES.items() if value == family],
        "model_type": family,
        "num_hidden_layers": fields.value("num_layers"),
        "num_key_value_heads": fields.value("num_kv_heads"),
        "rms_norm_eps": 1e-5 if family in ("llama", "mistral") else 1e-6,
        "rope_parameters": rope,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    same = ("hidden_size", "num_attention_heads", "head_dim", "intermediate_size", "vocab_size", "dtype")
    config |= {key: fields.value(key) for key in (*same, "tie_word_embeddings", "max_position_embeddings")}
    if family == "mistral":
        config["sliding_window"] = model.get("sliding_window") or None
    if family == "qwen3_moe":
        experts = {"num_experts_per_tok": fields.value("num_experts_per_token"), "norm_topk_prob": True}
        config |= {key: fields.value(key) for key in ("num_experts", "moe_intermediate_size")}
        config |= {**experts, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return config


def _guess_family(model: Mapping[str, Any]) -> str:
    name = str(model.get("name", "")).lower()
    if "llama" in name:
        return "llama"
    if "qwen2" in name:
        return "qwen2"
    if "mistral" in name and not model.get("num_experts"):
        return "mistral"
    is_normed = model.get("qk_norm", True)
    if not model.get("num_experts"):
        return "qwen3" if is_normed else "llama"
    if not is_normed:
        raise ModelError("experts with qk_norm=false are not supported by the real engine; use engine=sim")
    return "qwen3_moe"


def check_folder(folder: Path) -> None:
    """Raise ModelError unless a path is a folder that can be read."""
    try:
        is_folder = folder.is_dir()
    except OSError as error:
        raise ModelError(f"{folder}: cannot be read: {error.strerror}") from None
    if not is_folder:
        raise ModelError(f"{folder}: no such model folder")


def _family_of(fields: Fields) -> Family:
    names = fields.texts("architectures")
    for name in names:
        if name in _ARCHITECTURES:
            return _ARCHITECTURES[name]
    raise ModelError(f"config.json: architecture {shown(names)} is not supported, only {', '.join(_ARCHITECTURES)}")


def _rope(fields: Fields) -> Fields:
    """Rotary options: `rope_parameters` of transformers 5, or `rope_scaling` of transformers 4."""
    parameters = fields.fields("rope_parameters")
    return parameters if parameters.data else fields.fields("rope_scaling")


def _rope_theta(fields: Fields) -> float:
    inner = _rope(fields)
    return (fields if inner.data.get("rope_theta") is None else inner).number("rope_theta", 1e4, least=1.0, most=1e15)


def _rope_scaling(rope: Fields) -> Llama3RopeScaling | None:
    kind = rope.data.get("rope_type", rope.data.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(f"config.json: rope_type={shown(kind)} is not supported, only 'default' and 'llama3'")
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


def _dtype_of(fields: Fields) -> Dtype:
    """`dtype` (transformers 5) or `torch_dtype` (4); float32 where neither is given, as in transformers."""
    dtype: Any = fields.data.get("dtype") or fields.data.get("torch_dtype") or "float32"
    if dtype not in get_args(Dtype):
        raise ModelError(f"config.json: dtype={shown(dtype)} is not supported, only {', '.join(get_args(Dtype))}")
    return dtype


def _eos_token_ids(fields: Fields) -> tuple[int, ...]:
    return fields.counts("eos_token_id", most=MOST_TOKENS, most_values=1000)


def _sliding_window(fields: Fields) -> int:
    """The window of all layers; none where it is null, and 4096 where it is left out, as in transformers."""
    if "sliding_window" in fields.data and fields.data["sliding_window"] is None:
        return 0
    window = fields.count("sliding_window", 4096, most=MOST_TOKENS)
    return window if window < fields.count("max_position_embeddings", most=MOST_TOKENS) else 0


def _expert_fields(fields: Fields) -> dict[str, Any]:
    num_experts, num_experts_per_token = read_num_experts(fields)
    return {
        "num_experts": num_experts,
        "num_experts_per_token": num_experts_per_token,
        "moe_intermediate_size": fields.count("moe_intermediate_size", most=MOST_WIDTH),
        "norm_topk_prob": fields.flag("norm_topk_prob"),
        "decoder_sparse_step": fields.count("decoder_sparse_step", 1, most=MOST_LAYERS),
        "mlp_only_layers": fields.counts("mlp_only_layers", most=MOST_LAYERS, most_values=MOST_LAYERS),
    }
