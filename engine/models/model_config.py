"""Shape of a model, read from Hugging Face's `config.json`. Imports no torch: the harness reads shapes without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from engine.json_file import Fields, read_json, shown
from engine.json_file import ModelError as ModelError  # also imported from here
from engine.model_sizes import MOST_TOKENS, read_sizes
from engine.models.families import ARCHITECTURES, Family
from engine.models.family_fields import ClampedGate, LatentSizes, SigmoidRouting, family_fields
from engine.models.hf_config import hf_config
from engine.models.quantization import Fp8Weights
from engine.models.rope_scaling import RopeScaling, read_rope

Dtype = Literal["float32", "bfloat16", "float16"]

# Keys of `config.json` of which the layers implement one value only.
_FIXED_VALUES: dict[str, Any] = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
    # of DeepSeek
    "moe_layer_freq": 1,
    "rope_interleave": True,
}
_HEAD_DIMS: dict[Family, int] = {"qwen3": 128, "gpt_oss": 64}  # where the file states none
_NO_FLOAT8 = ("gpt_oss", "deepseek_v2", "deepseek_v3")


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
        full_layers: layers without the window.
        num_shared_experts: experts that every token uses, beside those that it chooses.
        routed_scaling_factor: factor of the output of the experts that a token chooses.
        sigmoid_routing: how tokens choose experts by sigmoids; None: by a softmax.
        clamped_gate: the activation of the experts, which also have biases; None: SiLU, without biases.
        mxfp4: whether the checkpoint's experts are in MXFP4; they are put into the model's dtype as they are loaded.
        latent: sizes of latent attention, in which there is one KV head and head_dim is that of queries; else None.
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
    rope_scaling: RopeScaling | None
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
    full_layers: tuple[int, ...] = ()
    num_shared_experts: int = 0
    routed_scaling_factor: float = 1.0
    sigmoid_routing: SigmoidRouting | None = None
    clamped_gate: ClampedGate | None = None
    mxfp4: bool = False
    latent: LatentSizes | None = None

    def __post_init__(self) -> None:
        if self.fp8 is not None and self.family in _NO_FLOAT8:
            raise ModelError(f"float8 weights of the family {self.family} are not supported")

    @property
    def num_sliding_layers(self) -> int:
        """Layers that have the window."""
        return self.num_layers - len(self.full_layers) if self.sliding_window else 0

    def window_of(self, layer: int) -> int:
        """The window of a layer, counted from 0; 0 for none."""
        return 0 if layer in self.full_layers else self.sliding_window

    @property
    def has_sinks(self) -> bool:
        """Whether each query head has a sink; see `kernels.attention.metadata.AttentionBackend`."""
        return self.family == "gpt_oss"

    @property
    def attention_kind(self) -> Literal["plain", "windows", "latent"]:
        """As `kernels.attention.backends.AttentionKind`."""
        if self.latent is not None:
            return "latent"
        return "windows" if self.sliding_window or self.has_sinks else "plain"

    @property
    def rope_dim(self) -> int:
        """Elements of a query that are rotated."""
        return self.head_dim if self.latent is None else self.latent.qk_rope_head_dim

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
        theta, scaling = read_rope(fields)
        sizes: dict[str, Any] = read_sizes(fields, _HEAD_DIMS.get(family))._asdict()
        return cls(
            family=family,
            **sizes | family_fields(fields, family, sizes["num_layers"]),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6, least=1e-30, most=1.0),
            rope_theta=theta,
            rope_scaling=scaling,
            dtype=_dtype_of(fields),
            initializer_range=fields.number("initializer_range", 0.02, least=0.0, most=1e3),
            eos_token_ids=_eos_token_ids(fields),
        )

    @classmethod
    def from_shape(cls, model: Mapping[str, Any]) -> ModelConfig:
        """From the fields of a `conf/model/*.yaml` file; see `hf_config`."""
        return cls.from_hf(hf_config(model))


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
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    raise ModelError(f"config.json: architecture {shown(names)} is not supported, only {', '.join(ARCHITECTURES)}")


def _dtype_of(fields: Fields) -> Dtype:
    """`dtype` (transformers 5) or `torch_dtype` (4); float32 where neither is given, as in transformers."""
    dtype: Any = fields.data.get("dtype") or fields.data.get("torch_dtype") or "float32"
    if dtype not in get_args(Dtype):
        raise ModelError(f"config.json: dtype={shown(dtype)} is not supported, only {', '.join(get_args(Dtype))}")
    return dtype


def _eos_token_ids(fields: Fields) -> tuple[int, ...]:
    return fields.counts("eos_token_id", most=MOST_TOKENS, most_values=1000)
