"""A model as the simulator sees it: a list of counted blocks between two embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from engine.engine_config import KVDtype
from simulator.device import Device
from simulator.models.block import Block, Weights
from simulator.models.dense import Dense
from simulator.models.experts import Experts
from simulator.models.grouped_query import GroupedQuery
from simulator.models.latent import Latent
from simulator.models.weight_formats import FLOAT32, NONE, Quantization

_PLAIN = ("router", "lm_head")
_Kind = TypeVar("_Kind", bound=Block)


class Counted(NamedTuple):
    """`number` blocks that are alike."""

    number: int
    block: Block


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    Weights and activations take `dtype_bytes` per element, the KV cache as `kv_dtype` says; `dtype` names the
    arithmetic ("bf16" or "fp32"). `learned_positions` is the length of a table of position embeddings, 0 without one.
    `tower_parameters` are those of a tower for images, which ranks share and steps of text do not use.
    `quantization` is the format of the weights of attention's projections and of the MLPs, but for `part_formats`. The
    models of `conf/model` leave out biases, which are below 0.1 % of their weights.
    """

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    tie_word_embeddings: bool
    max_position_embeddings: int
    dtype: str
    dtype_bytes: int
    blocks: tuple[Counted, ...]
    learned_positions: int = 0
    kv_dtype: KVDtype = "auto"
    quantization: Quantization = NONE
    part_formats: Mapping[str, Quantization] = field(default_factory=dict, hash=False)
    tower_parameters: int = 0

    def of_kind(self, kind: type[_Kind]) -> Iterator[tuple[int, _Kind]]:
        """The counted blocks of a kind."""
        return ((count, block) for count, block in self.blocks if isinstance(block, kind))

    def first(self, kind: type[_Kind]) -> _Kind | None:
        return next((block for _, block in self.of_kind(kind)), None)

    @property
    def priced_kv_dtypes(self) -> tuple[KVDtype, ...]:
        """KV dtypes whose measured times price this model, best first: for int8 and int4, which databases of operator
        times lack, also those of fp8, and else of the model's dtype."""
        return (self.kv_dtype, "fp8", "auto") if self.kv_dtype in ("int8", "int4") else (self.kv_dtype,)

    @property
    def weight_format(self) -> str:
        """The format of the weights, for people."""
        return self.dtype if self.quantization.weight_bits is None else self.quantization.name

    def format_of(self, part: str) -> Quantization:
        """The format of a part of the weights; routers and the LM head always have the model's dtype, or float32."""
        if part == "float32_router":
            return FLOAT32
        is_plain = part in _PLAIN or (self.quantization.experts_only and part != "experts")
        return self.part_formats.get(part, NONE if is_plain else self.quantization)

    @property
    def num_blocks(self) -> int:
        return sum(count for count, _ in self.blocks)

    def matrices(self, ranks: int = 1) -> Iterator[tuple[int, Weights]]:
        """The matrices of all blocks on one rank, with the number of blocks that have them."""
        return ((count, weights) for count, block in self.blocks for weights in block.matrices(self, ranks))

    def kv_bytes_per_token(self, ranks: int = 1, *, growing_only: bool = False) -> int:
        """Bytes of a token in the cache of one rank; `growing_only`: in the layers that keep all tokens."""
        kept = (each for each in self.blocks if not (growing_only and each.block.window))
        return sum(count * block.kv_bytes(self, ranks) for count, block in kept)

    def state_bytes(self, ranks: int = 1) -> int:
        """Bytes of a running sequence beside its cache on one rank."""
        return sum(count * block.state_bytes(self, ranks) for count, block in self.blocks)

    @property
    def rotary_table_bytes(self) -> int:
        """Bytes of the sines and cosines of all positions, which every rank holds."""
        if self.learned_positions:
            return 0
        return self.max_position_embeddings * max(block.rotary_dim for _, block in self.blocks) * self.dtype_bytes

    def weight_bytes(self, ranks: int = 1) -> int:
        """Bytes of all weights on one rank, scales included: sharded matrices, replicated router and norms."""
        matrices = sum(
            count * each.copies * self.format_of(each.part).matrix_bytes(each.rows, each.columns, self.dtype_bytes)
            for count, each in self.matrices(ranks)
        )
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size // ranks
        embeddings += self.learned_positions * self.hidden_size
        others = sum(count * block.num_vectors(self) for count, block in self.blocks) + embeddings + self.hidden_size
        return round(matrices) + others * self.dtype_bytes

    @property
    def num_expert_layers(self) -> int:
        return sum(count for count, _ in self.of_kind(Experts))

    @property
    def num_expert_ranks(self) -> int:
        """Ranks that share out whole experts."""
        experts = self.first(Experts)
        return experts.num_ranks if experts else 1

    def with_experts_on(self, num_ranks: int) -> Model:
        """The same model whose experts are shared out over `num_ranks` ranks."""

        def part(block: Block) -> Block:
            return replace(block, num_ranks=num_ranks) if isinstance(block, Experts) else block

        return replace(self, blocks=tuple(Counted(count, part(block)) for count, block in self.blocks))

    def with_layers(self, num_layers: int) -> Model:
        """The model with another number of layers, of the same kinds in about the same shares."""

        def scaled(count: int) -> int:
            return round(count * num_layers / self.num_layers)

        blocks: list[Counted] = []
        for is_attention in (True, False):
            (first, block), *rest = [each for each in self.blocks if each.block.is_attention is is_attention]
            others = [Counted(scaled(count), other) for count, other in rest]
            total = scaled(first + sum(count for count, _ in rest))  # the first kind takes what rounding leaves
            blocks += [Counted(total - sum(count for count, _ in others), block), *others]
        return replace(self, num_layers=num_layers, blocks=tuple(each for each in blocks if each.number))

    def largest_stage(self, num_stages: int) -> Model:
        """A model with as many layers as the largest stage of a pipeline, of the same kinds in about the same shares.

        It has both embeddings: they are on the first and the last stage, and which is the largest depends on the model.
        So a KV pool that is sized for it is rather too small.
        """
        return self.with_layers(max(layers_of_stages(self.num_layers, num_stages)))

    def check_arithmetic(self, device: Device) -> None:
        """Raises UnsupportedQuantizationError where `device` has no rate for the format of a matrix."""
        for part in {weights.part for _, weights in self.matrices()}:
            self.format_of(part).products(self.dtype, device.flops, device.name)

    def kv_reads(self, device: Device, ranks: int = 1) -> float:
        """How often attention reads the KV of a decode in a step with prompts: in a step without, it is read once.

        FlashAttention 2 lets the query heads of a KV head share what is read only where no sequence computes more than
        one token (`seqlenq_ngroups_swapped` in mha_varlen_fwd of flash_api.cpp). Else each query head reads for itself,
        from memory where the cache of the device cannot hold what is under way.
        """
        attention = self.first(GroupedQuery)
        if device.shares_kv_reads or attention is None:
            return 1.0
        return attention.num_heads / ranks / attention.kv_heads_per_rank(ranks)

    @property
    def sizes(self) -> dict[str, int | bool]:
        """The sizes by the names that profiles and the configuration have for them; 0 of what a model lacks."""
        attentions = list(self.of_kind(GroupedQuery))
        attention = attentions[0][1] if attentions else None
        mlp, experts, latent = self.first(Dense), self.first(Experts), self.first(Latent)
        return {
            "num_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "dtype_bytes": self.dtype_bytes,
            "num_attention_heads": attention.num_heads if attention else latent.num_heads if latent else 0,
            "num_kv_heads": attention.num_kv_heads if attention else 0,
            "head_dim": attention.head_dim if attention else 0,
            "qk_norm": attention.qk_norm if attention else False,
            "sliding_window": max((block.window for _, block in attentions), default=0),
            "num_sliding_layers": sum(count for count, block in attentions if block.window),
            # The configuration may have it beside experts.
            **({"intermediate_size": mlp.intermediate_size} if mlp else {}),
            "num_experts": experts.num_experts if experts else 0,
            "num_experts_per_token": experts.num_used if experts else 0,
            "moe_intermediate_size": experts.intermediate_size if experts else 0,
            "shared_size": experts.shared_size if experts else 0,
            "kv_rank": latent.kv_rank if latent else 0,
            "index_topk": latent.index_topk if latent else 0,
            "num_states": sum(count for count, block in self.blocks if block.heads() and not block.scans(self, 1)),
        }


def layers_of_stages(num_layers: int, num_stages: int) -> list[int]:
    """Layers of each stage, as even as can be; as vLLM has it, what is left over goes to the stages before the last."""
    each, left = divmod(num_layers, num_stages)
    layers = [each] * num_stages
    for stage in range(left):
        layers[num_stages - 2 - stage if num_stages > 1 else 0] += 1
    return layers
