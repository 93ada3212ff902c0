"""Configuration of the model that is served."""

from dataclasses import fields
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from harness.config.schema.base import ConfigModel, Text, within
from simulator.models.decoder import KINDS
from simulator.models.experts import Experts
from simulator.models.model import Counted
from simulator.quantities import RANGES

Dtype = Literal["float32", "bfloat16", "float16"]
WeightFormat = Literal["none", "fp8", "fp8_block", "int8", "int4", "int4_32", "nvfp4", "nvfp4_w4a16", "mxfp4"]
Part = Literal[
    "attention", "attention_output", "linear_attention", "indexer", "mlp", "experts", "shared_experts", "latent_experts"
]
_OF_ALIKE_LAYERS = ("num_attention_heads", "num_kv_heads", "head_dim", "intermediate_size")
_MOST = 1 << 32


class BlockConfig(ConfigModel):
    """Blocks that are alike: how many, their kind, and its sizes (`simulator.models`)."""

    model_config = ConfigDict(extra="allow")

    number: Annotated[int, within("num_layers")]
    kind: Literal["grouped_query", "latent", "gated_delta_net", "kimi_delta", "mamba2", "dense", "experts"]

    @cached_property
    def made(self) -> Counted:
        """The blocks as the simulator sees them; raises ValueError for unknown, missing or impossible sizes."""
        sizes, known = self.model_extra or {}, [field.name for field in fields(KINDS[self.kind])]  # type: ignore[arg-type]
        if unknown := [name for name in sizes if name not in known]:
            raise ValueError(f"{unknown[0]}: unknown size of {self.kind} (known: {', '.join(known)})")
        try:
            block = TypeAdapter(KINDS[self.kind]).validate_python(sizes, strict=None)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        return Counted(self.number, block)

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        for name, size in (self.model_extra or {}).items():
            if not 0 <= size <= _MOST:
                raise ValueError(f"{name}={size}: must be >= 0 and <= {_MOST}")
        assert self.made
        return self


class ModelConfig(ConfigModel):
    """Sizes of a decoder-only transformer, in elements.

    If all layers have grouped-query attention and a gated MLP, or all a mixture of experts, their sizes are keys.
    Other models list their `blocks` instead.

    Attributes:
        name: of the model on Hugging Face.
        num_layers: decoder layers.
        hidden_size: width of the activations between layers.
        num_attention_heads: query heads of a layer.
        num_kv_heads: heads of keys and values of a layer; divides the number of query heads.
        head_dim: width of a head.
        intermediate_size: width of the dense MLP.
        vocab_size: tokens of the vocabulary.
        tie_word_embeddings: whether the output uses the weights of the input embedding.
        max_position_embeddings: longest context in tokens.
        dtype: of weights, activations and KV cache.
        num_experts: 0 means a dense MLP of intermediate_size; with experts every layer's MLP is this many gated MLPs.
        num_experts_per_token: experts that a token uses.
        moe_intermediate_size: width of an expert.
        learned_positions: length of a table of position embeddings; in simulation only.
        sliding_window: tokens that some layers attend to, 0 for all tokens in all layers.
        num_sliding_layers: layers that attend to sliding_window tokens.
        qk_norm: whether each head of query and key is normed.
        extra_layer_parameters: of a layer, beside its matrices, two norms of hidden_size, and norms of a query and a
            key head: biases and other norms.
        quantization: format of the published weights (simulator/models/weight_formats.py); the top-level key of that
            name can ask for another one.
        kv_cache_dtype: of the KV cache that the published checkpoint asks for: auto (the model's dtype) or fp8;
            engine.kv_cache_dtype can ask for another one.
        part_formats: formats of parts of the published weights that are not in that of quantization, by part:
            attention, attention_output, linear_attention, indexer, mlp, experts, shared_experts, latent_experts.
        blocks: attention and MLPs of all layers, where they are not alike: a list of {number, kind, sizes}, with the
            kinds and sizes of simulator/models; a real engine runs them with engine.weights only.
        tower_parameters: of a tower for images beside the model, which takes memory; 0 where the server leaves it out.
        ignored_keys: keys of the file of model.config that are not understood.
    """

    name: Text
    num_layers: Annotated[int, within("num_layers")]
    hidden_size: Annotated[int, within("hidden_size")]
    vocab_size: Annotated[int, within("vocab_size")]
    tie_word_embeddings: bool
    max_position_embeddings: Annotated[int, within("max_position_embeddings")]
    dtype: Dtype
    num_attention_heads: Annotated[int, Field(ge=0, le=RANGES["num_attention_heads"].high)] = 0
    num_kv_heads: Annotated[int, Field(ge=0, le=RANGES["num_kv_heads"].high)] = 0
    head_dim: Annotated[int, Field(ge=0, le=RANGES["head_dim"].high)] = 0
    intermediate_size: Annotated[int, Field(ge=0, le=RANGES["intermediate_size"].high)] = 0
    num_experts: Annotated[int, within("num_experts")] = 0
    num_experts_per_token: Annotated[int, within("num_experts_per_token")] = 0
    moe_intermediate_size: Annotated[int, within("moe_intermediate_size")] = 0
    learned_positions: Annotated[int, within("learned_positions")] = 0
    sliding_window: Annotated[int, within("sliding_window")] = 0
    num_sliding_layers: Annotated[int, within("num_sliding_layers")] = 0
    qk_norm: bool = False
    extra_layer_parameters: Annotated[int, within("extra_layer_parameters")] = 0
    quantization: WeightFormat = "none"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    part_formats: dict[Part, WeightFormat] = {}
    blocks: Annotated[tuple[BlockConfig, ...], Field(strict=False)] = ()
    tower_parameters: Annotated[int, Field(ge=0, le=_MOST)] = 0
    ignored_keys: Annotated[tuple[Text, ...], Field(strict=False)] = ()

    @property
    def expert_counts(self) -> tuple[int, ...]:
        """Experts of a layer, of each kind of layers that has some."""
        own = (self.num_experts,) if self.num_experts else ()
        mixtures = (each.made.block for each in self.blocks)
        return own + tuple(block.num_experts for block in mixtures if isinstance(block, Experts))

    @property
    def has_experts(self) -> bool:
        return bool(self.expert_counts)

    def shares_out(self, size: int) -> str | None:
        """Which of its heads `size` ranks cannot share, if any; ranks beyond the number of KV heads hold copies."""
        if not self.blocks:
            if self.num_attention_heads % size:
                return f"must divide model.num_attention_heads={self.num_attention_heads}"
            if self.num_kv_heads % size and size % self.num_kv_heads:
                return f"must divide or be a multiple of model.num_kv_heads={self.num_kv_heads}"
        for block in self.blocks:
            if any(heads % size for heads in block.made.block.heads()):
                return f"must divide the heads of {block.kind}"
        return None

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        sizes = {name: getattr(self, name) for name in _OF_ALIKE_LAYERS}
        if lacking := [name for name, size in sizes.items() if bool(size) == bool(self.blocks)]:
            how = "has no meaning with" if self.blocks else "is missing, or else"
            raise ValueError(f"{lacking[0]}: {how} blocks")
        if self.blocks:
            return self
        if self.num_attention_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads}: must divide num_attention_heads={self.num_attention_heads}"
            )
        return self

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        sizes = (self.num_experts, self.num_experts_per_token, self.moe_intermediate_size)
        if any(sizes) and not all(sizes):
            raise ValueError(
                f"num_experts={self.num_experts}: num_experts_per_token and moe_intermediate_size must be >= 1 with "
                "experts, and all three 0 without"
            )
        if self.num_experts_per_token > self.num_experts:
            raise ValueError(
                f"num_experts_per_token={self.num_experts_per_token}: must be <= num_experts={self.num_experts}"
            )
        return self

    @model_validator(mode="after")
    def _check_windows(self) -> Self:
        if bool(self.sliding_window) != bool(self.num_sliding_layers) or self.num_sliding_layers > self.num_layers:
            raise ValueError(
                f"num_sliding_layers={self.num_sliding_layers}: must be from 1 to num_layers={self.num_layers} with a "
                "sliding_window, and 0 without"
            )
        return self
