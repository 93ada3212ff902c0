"""Models and devices as the simulator sees them: shapes, rates, and the KV pool that follows from both."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.quantization import QUANTIZATIONS, Quantization

GIB = 1 << 30


class DeviceTooSmallError(ValueError):
    """The model leaves no room for a single KV block."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer with grouped-query attention and gated MLPs.

    `num_experts == 0` means a dense MLP of `intermediate_size`; otherwise each layer has `num_experts` MLPs of
    `moe_intermediate_size` of which a token uses `num_experts_per_token`. Weights and activations take `dtype_bytes`
    per element, the KV cache `kv_dtype_bytes`, if that is given; `dtype` names the arithmetic ("bf16" or "fp32").
    `learned_positions` is the length of a table of position embeddings, 0 without one. `num_sliding_layers` layers attend
    to the last `sliding_window` tokens only, the others to all. `qk_norm`: each head of query and key is normed.
    `quantization` is the format of the weights of attention's projections and of the MLPs. Biases are left out: they are
    below 0.05 % of the weights of all published models.
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
    sliding_window: int = 0
    num_sliding_layers: int = 0
    qk_norm: bool = False
    quantization: Quantization = QUANTIZATIONS["none"]

    @property
    def kv_element_bytes(self) -> int:
        return self.kv_dtype_bytes or self.dtype_bytes

    @property
    def weight_format(self) -> str:
        """The format of the weights, for people."""
        return self.dtype if self.quantization.weight_bits is None else self.quantization.name

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

    @property
    def num_full_layers(self) -> int:
        """Layers that attend to all tokens."""
        return self.num_layers - self.num_sliding_layers

    def kv_bytes_per_token(self, tensor_parallel_size: int = 1, num_layers: int | None = None) -> int:
        """Bytes of K and V of one token in `num_layers` layers (None: all) on one rank:
        2·layers·kv_heads/TP·head_dim·bytes."""
        num_layers = self.num_layers if num_layers is None else num_layers
        heads = self.kv_heads_per_rank(tensor_parallel_size)
        return 2 * num_layers * heads * self.head_dim * self.kv_element_bytes

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
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size // tp
        embeddings += self.learned_positions * self.hidden_size
        others = self.num_layers * (router + norms) + embeddings + self.hidden_size
        return round(self.num_layers * products) + others * self.dtype_bytes


@dataclass(frozen=True)
class Device:
    """One accelerator and its link to its peers.

    `memory_bandwidth` and `link_bandwidth` (one direction) in bytes/s, `flops` dense operations/s by "bf16" and
    "fp32". The efficiencies are the shares of these rates that kernels reach; `link_latency_s` the fixed time of an
    all-reduce, `step_overhead_s` the host time of one engine step, `multiprocessors` their number on a GPU, if known,
    `aiconfigurator_system` the name in NVIDIA's database of operator times, if it is in there.
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
    aiconfigurator_system: str | None = None


@dataclass(frozen=True)
class KVPool:
    """The KV blocks of one rank, and how its memory is divided, in bytes; 0 if the number of blocks was configured.

    `window_bytes` is set apart for layers with a sliding window, of which `block_bytes` then has no share.
    """

    num_blocks: int
    block_size: int
    block_bytes: int
    usable_bytes: int = 0
    weight_bytes: int = 0
    activation_bytes: int = 0
    window_bytes: int = 0

    def describe(self) -> str:
        """One line for the log: the number of blocks and the formula it comes from."""
        line = f"KV pool: {self.num_blocks:,} blocks x {self.block_size} tokens = {self.num_tokens:,} tokens"
        layers = "layers without window" if self.window_bytes else "layers"
        each = f"{self.block_bytes:,} bytes per block = 2·{layers}·block_size·kv_heads/TP·head_dim·bytes"
        if not self.usable_bytes:
            return f"{line}, as configured; {each}"
        windows = f" - sliding windows {self.window_bytes / GIB:.2f} GiB" if self.window_bytes else ""
        account = (
            f"(usable {self.usable_bytes / GIB:.2f} GiB - weights {self.weight_bytes / GIB:.2f} GiB"
            f" - activations {self.activation_bytes / GIB:.2f} GiB{windows})"
        )
        return f"{line} from {account}; {each}"

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size


def activation_bytes(
    model: ModelShape, max_num_batched_tokens: int, max_num_seqs: int, tensor_parallel_size: int
) -> int:
    """Peak of the buffers that live at once in the largest step on one rank.

    Per token: the residual and the hidden state, the embeddings of tokens and positions where positions are learned
    (they stay while the layers run), and the larger of the MLP's gate, up and product or attention's query, key, value
    and output. Or, if they take more, the logits of all sequences in float32, twice (raw and scaled).
    """
    tp = tensor_parallel_size
    width = model.moe_intermediate_size * model.num_experts_per_token or model.intermediate_size
    heads = 2 * model.num_attention_heads // tp + 2 * model.kv_heads_per_rank(tp)
    hidden_states = 4 if model.learned_positions else 2
    per_token = hidden_states * model.hidden_size + max(3 * width // tp, heads * model.head_dim)
    logits = 2 * max_num_seqs * model.vocab_size * 4
    return max(max_num_batched_tokens * per_token * model.dtype_bytes, logits)


def size_kv_pool(
    model: ModelShape,
    device: Device,
    *,
    block_size: int,
    tensor_parallel_size: int,
    gpu_memory_utilization: float,
    max_num_batched_tokens: int,
    max_num_seqs: int,
) -> KVPool:
    """The KV blocks that fit on one rank beside the weights and the largest step's activations.

    Layers with a sliding window are counted as vLLM's hybrid KV-cache manager holds them, if some layers have none: each
    running sequence holds its window and a partial block in them, and a step's prompt chunks as much more as they
    compute. That is set apart here for `max_num_seqs` sequences, where vLLM hands it out as needed, so that the pool is
    at most too small; also, as vLLM may, every layer holds whole contexts if that leaves more blocks.

    Raises:
        DeviceTooSmallError: not even one block fits.
    """
    block_bytes = block_size * model.kv_bytes_per_token(tensor_parallel_size)
    usable = int(device.memory_bytes * gpu_memory_utilization)
    weights = model.weight_bytes(tensor_parallel_size)
    activations = activation_bytes(model, max_num_batched_tokens, max_num_seqs, tensor_parallel_size)
    free = usable - weights - activations
    num_blocks, window_bytes = free // block_bytes, 0
    if 0 < model.num_sliding_layers < model.num_layers:
        windowed = max_num_seqs * (model.sliding_window + block_size) + max_num_batched_tokens
        apart = windowed * model.kv_bytes_per_token(tensor_parallel_size, model.num_sliding_layers)
        others = block_size * model.kv_bytes_per_token(tensor_parallel_size, model.num_full_layers)
        if (free - apart) // others > num_blocks:
            num_blocks, block_bytes, window_bytes = (free - apart) // others, others, apart
    if num_blocks < 1:
        raise DeviceTooSmallError(
            f"{model.name} does not fit on {device.name} with tensor_parallel_size={tensor_parallel_size}: "
            f"weights {weights / GIB:.1f} GiB and activations {activations / GIB:.1f} GiB leave no KV block of "
            f"{block_bytes / GIB:.3f} GiB in {usable / GIB:.1f} usable GiB; use a larger device, more ranks, "
            "a smaller model or a smaller block_size"
        )
    return KVPool(num_blocks, block_size, block_bytes, usable, weights, activations, window_bytes)
