"""Models and devices as the simulator sees them: shapes and rates."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.quantization import QUANTIZATIONS, Quantization


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer with grouped-query attention and gated MLPs.

    `num_experts == 0` means a dense MLP of `intermediate_size`; otherwise each layer has `num_experts` MLPs of
    `moe_intermediate_size` of which a token uses `num_experts_per_token`. Weights and activations take `dtype_bytes`
    per element, the KV cache `kv_dtype_bytes`, if that is given; `dtype` names the arithmetic ("bf16" or "fp32").
    `learned_positions` is the length of a table of position embeddings, 0 without one. `quantization` is the format of
    the weights of attention's projections and of the MLPs.
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
    kv_dtype_bytes: int | None = None
    quantization: Quantization = QUANTIZATIONS["none"]

    @property
    def kv_element_bytes(self) -> int:
        return self.kv_dtype_bytes or self.dtype_bytes

    @property
    def linear_bytes(self) -> float:
        """Bytes of a weight of the projections of attention."""
        bits = None if self.quantization.experts_only else self.quantization.weight_bits
        return self.dtype_bytes if bits is None else bits / 8

    @property
    def mlp_bytes(self) -> float:
        """Bytes of a weight of an MLP or an expert."""
        bits = self.quantization.weight_bits
        return self.dtype_bytes if bits is None else bits / 8

    def kv_heads_per_rank(self, tensor_parallel_size: int) -> int:
        """KV heads are split over the ranks, and replicated where there are more ranks than heads."""
        return max(1, self.num_kv_heads // tensor_parallel_size)

    def kv_bytes_per_token(self, tensor_parallel_size: int = 1) -> int:
        """Bytes of K and V of one token in all layers on one rank: 2·layers·kv_heads/TP·head_dim·bytes."""
        heads = self.kv_heads_per_rank(tensor_parallel_size)
        return 2 * self.num_layers * heads * self.head_dim * self.kv_element_bytes

    @property
    def rotary_table_bytes(self) -> int:
        """Bytes of the sines and cosines of all positions, which every rank holds."""
        return 0 if self.learned_positions else self.max_position_embeddings * self.head_dim * self.dtype_bytes

    def attention_parameters(self, tensor_parallel_size: int = 1) -> tuple[int, int]:
        """Elements of one layer's QKV and output projection on one rank."""
        heads = self.num_attention_heads // tensor_parallel_size
        qkv_heads = heads + 2 * self.kv_heads_per_rank(tensor_parallel_size)
        return self.hidden_size * qkv_heads * self.head_dim, heads * self.head_dim * self.hidden_size

    def mlp_parameters(self) -> tuple[int, int]:
        """Elements of the gate-and-up and the down projection of one MLP (of one expert, with experts)."""
        width = self.moe_intermediate_size if self.num_experts else self.intermediate_size
        return 2 * self.hidden_size * width, width * self.hidden_size

    def weight_bytes(self, tensor_parallel_size: int = 1) -> int:
        """Bytes of all weights on one rank: sharded matrices, replicated router and norms."""
        tp = tensor_parallel_size
        mlp = sum(self.mlp_parameters()) * max(1, self.num_experts) // tp
        products = sum(self.attention_parameters(tp)) * self.linear_bytes + mlp * self.mlp_bytes
        router = self.hidden_size * self.num_experts
        norms = 2 * self.hidden_size + 2 * self.head_dim
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size // tp
        embeddings += self.learned_positions * self.hidden_size
        others = self.num_layers * (router + norms) + embeddings + self.hidden_size
        return round(self.num_layers * products) + others * self.dtype_bytes


@dataclass(frozen=True)
class Device:
    """One accelerator and its link to its peers.

    `memory_bandwidth` and `link_bandwidth` (one direction) in bytes/s, `flops` dense operations/s by "bf16" and
    "fp32". The efficiencies are the shares of these rates that kernels reach; `link_latency_s` the fixed time of an
    all-reduce, `step_overhead_s` the host time of one engine step, `multiprocessors` their number on a GPU, if known.
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
