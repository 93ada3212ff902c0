"""Models and devices as the simulator sees them: shapes and rates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engine.engine_config import KVDtype
from simulator.models.weight_formats import NONE, Quantization

_SCALE_BYTES = 2  # of int8 and int4 in the KV cache


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer with grouped-query attention and gated MLPs.

    `num_experts == 0` means a dense MLP of `intermediate_size`; otherwise each layer has `num_experts` MLPs of
    `moe_intermediate_size` of which a token uses `num_experts_per_token`. Weights and activations take `dtype_bytes`
    per element, the KV cache as `kv_dtype` says; `dtype` names the arithmetic ("bf16" or "fp32").
    `learned_positions` is the length of a table of position embeddings, 0 without one. `num_sliding_layers` layers
    attend to the last `sliding_window` tokens only, the others to all. `qk_norm` says whether heads of query and key
    are normed. `extra_layer_parameters` are those of a layer beside its matrices, the two norms of `hidden_size`, and
    norms of a query and a key head, in full on each rank. `quantization` is the format of the weights of attention's
    projections and of the MLPs. The models of `conf/model` leave out biases, which are below 0.1 % of their weights.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    max_position_embeddings: int
    dtype: str
    dtype_bytes: int
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0
    learned_positions: int = 0
    kv_dtype: KVDtype = "auto"
    sliding_window: int = 0
    num_sliding_layers: int = 0
    qk_norm: bool = False
    extra_layer_parameters: int = 0
    quantization: Quantization = NONE

    @property
    def kv_row_bytes(self) -> int:
        """Bytes of the key (or value) of one token in one KV head.

        A row of int8 or int4 ends in the float16 scale of its elements. Two elements of int4 take a byte. The scales of
        fp8 are one per head for all tokens, and are not counted.
        """
        bits = {"auto": 8 * self.dtype_bytes, "fp8": 8, "int8": 8, "int4": 4}[self.kv_dtype]
        return -(-self.head_dim * bits // 8) + (_SCALE_BYTES if self.kv_dtype in ("int8", "int4") else 0)

    @property
    def priced_kv_dtypes(self) -> tuple[KVDtype, ...]:
        """KV dtypes whose measured times price this model, best first: for int8 and int4, which databases of operator
        times lack, also those of fp8, and else of the model's dtype."""
        return (self.kv_dtype, "fp8", "auto") if self.kv_dtype in ("int8", "int4") else (self.kv_dtype,)

    @property
    def weight_format(self) -> str:
        """The format of the weights, for people."""
        return self.dtype if self.quantization.weight_bits is None else self.quantization.name

    @property
    def attention_quantization(self) -> Quantization:
        """The format of attention's projections."""
        return NONE if self.quantization.experts_only else self.quantization

    def kv_heads_per_rank(self, tensor_parallel_size: int) -> int:
        """KV heads are split over the ranks, and replicated where there are more ranks than heads."""
        return max(1, self.num_kv_heads // tensor_parallel_size)

    @property
    def num_full_layers(self) -> int:
        """Layers that attend to all tokens."""
        return self.num_layers - self.num_sliding_layers

    def kv_bytes_per_token(self, tensor_parallel_size: int = 1, num_layers: int | None = None) -> int:
        """Bytes of K and V of one token in `num_layers` layers (None: all) on one rank:
        2·layers·kv_heads/TP·kv_row_bytes."""
        num_layers = self.num_layers if num_layers is None else num_layers
        heads = self.kv_heads_per_rank(tensor_parallel_size)
        return 2 * num_layers * heads * self.kv_row_bytes

    @property
    def rotary_table_bytes(self) -> int:
        """Bytes of the sines and cosines of all positions, which every rank holds."""
        return 0 if self.learned_positions else self.max_position_embeddings * self.head_dim * self.dtype_bytes

    def attention_matrices(self, tensor_parallel_size: int = 1) -> tuple[tuple[int, int], tuple[int, int]]:
        """(rows, columns) of one layer's QKV and output projection on one rank."""
        heads = self.num_attention_heads // tensor_parallel_size
        qkv_heads = heads + 2 * self.kv_heads_per_rank(tensor_parallel_size)
        return (qkv_heads * self.head_dim, self.hidden_size), (self.hidden_size, heads * self.head_dim)

    def mlp_matrices(self, tensor_parallel_size: int = 1) -> tuple[tuple[int, int], tuple[int, int]]:
        """(rows, columns) of gate-and-up and down projection of one MLP (of one expert, with experts) on one rank."""
        width = (self.moe_intermediate_size if self.num_experts else self.intermediate_size) // tensor_parallel_size
        return (2 * width, self.hidden_size), (self.hidden_size, width)

    def weight_bytes(self, tensor_parallel_size: int = 1) -> int:
        """Bytes of all weights on one rank, scales included: sharded matrices, replicated router and norms."""
        tp = tensor_parallel_size

        def size(matrices: tuple[tuple[int, int], ...], quantization: Quantization) -> float:
            return sum(quantization.matrix_bytes(*matrix, self.dtype_bytes) for matrix in matrices)

        layer = size(self.attention_matrices(tp), self.attention_quantization)
        layer += max(1, self.num_experts) * size(self.mlp_matrices(tp), self.quantization)
        router = self.hidden_size * self.num_experts
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size // tp
        embeddings += self.learned_positions * self.hidden_size
        others = self.num_layers * (router + norms + self.extra_layer_parameters) + embeddings + self.hidden_size
        return round(self.num_layers * layer) + others * self.dtype_bytes

    @property
    def num_expert_layers(self) -> int:
        return self.num_layers if self.num_experts else 0

    def of_rank(self, num_ranks: int) -> ModelShape:
        """What is on one of the ranks that share out the experts, and nothing else."""
        return replace(self, num_experts=self.num_experts // num_ranks)

    def kv_reads(self, device: Device, tensor_parallel_size: int = 1) -> float:
        """How often attention reads the KV of a decode in a step with prompts: in a step without, it is read once.

        FlashAttention 2 lets the query heads of a KV head share what is read only where no sequence computes more than
        one token (`seqlenq_ngroups_swapped` in mha_varlen_fwd of flash_api.cpp). Else each query head reads for itself,
        from memory where the cache of the device cannot hold what is under way.
        """
        if device.shares_kv_reads:
            return 1.0
        return self.num_attention_heads / tensor_parallel_size / self.kv_heads_per_rank(tensor_parallel_size)


@dataclass(frozen=True)
class Device:
    """One accelerator and its link to its peers.

    `memory_bandwidth` and `link_bandwidth` (one direction) in bytes/s, `flops` dense operations/s by "bf16" and
    "fp32", and by "fp8", "int8" and "fp4" where it has them. The efficiencies are the shares of these rates that
    kernels reach; `link_latency_s` the fixed time of an all-reduce, `step_overhead_s` the host time of one engine step,
    `multiprocessors` their number on a GPU, if known, `shares_kv_reads` whether query heads of a KV head read it
    once in steps with prompts, too, `aiconfigurator_system` the name in NVIDIA's database of operator
    times, if it is in there.
    """

    name: str
    memory_bytes: int
    memory_bandwidth: float
    flops: dict[str, float] = field(hash=False)
    memory_efficiency: float
    flops_efficiency: float
    link_bandwidth: float
    link_latency_s: float
    step_overhead_s: float
    multiprocessors: int | None = None
    shares_kv_reads: bool = True
    aiconfigurator_system: str | None = None
