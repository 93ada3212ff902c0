"""Attention of a layer on the paged KV cache, with its projections, norms of q and k, and rotary embedding."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from engine.models.layers.checkpoint import CheckpointTensor
from engine.models.layers.linear import (
    ColumnParallelLinear,
    Layer,
    RMSNorm,
    RowParallelLinear,
    Rows,
    kv_head_rows,
    parameter,
)
from engine.models.layers.parallel import TensorParallel
from engine.models.layers.rotary import Rotary
from engine.models.model_config import ModelConfig
from kernels.attention.backends import AttentionBackend, AttentionMetadata, LayerKV
from kernels.cache.rotary_store import HeadNorms, rotary_store, rotary_store_reference
from kernels.runtime import runs_triton

LayerCache = tuple[Tensor, Tensor]
"""Keys and values of one layer, each `[num_blocks, block_size, kv_heads, head_dim]`."""


class Sinks(Layer):
    """The sinks of this rank's query heads; see AttentionBackend."""

    def __init__(self, name: str, num_heads: int, tp: TensorParallel) -> None:
        super().__init__()
        self.rows = Rows.shard(f"{name}.sinks", num_heads, tp)
        self.weight = parameter(self.rows.size)

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        rows = self.rows
        yield CheckpointTensor(rows.name, (rows.total,), (slice(rows.start, rows.start + rows.size),), self.weight)


class Attention(nn.Module):
    """Grouped-query self-attention on the paged KV cache: `project`, then `attend`, then `output`.

    Args:
        name: the module's name in checkpoints, for example `model.layers.0.self_attn`. The other blocks have one too.
        qkv_bias: whether the projections to q, k and v have biases.
        output_bias: whether the output projection has a bias.
        qk_norm: whether q and k are normalised per head.
        window: see AttentionBackend.
    """

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        tp: TensorParallel,
        backend: AttentionBackend,
        rotary: Rotary,
        *,
        qkv_bias: bool,
        output_bias: bool,
        qk_norm: bool,
        window: int,
    ) -> None:
        super().__init__()
        self.backend = backend
        self.window = window
        self.sinks = Sinks(name, config.num_attention_heads, tp) if config.has_sinks else None
        self.rotary = rotary
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        self.output_dim = config.head_dim
        self.kv_scales: Tensor | None = None  # set for a float8 cache by engine.runner.cache.kv_scales
        q_size = config.num_attention_heads * config.head_dim
        parts = [Rows.shard(f"{name}.q_proj", q_size, tp)]
        parts += [
            kv_head_rows(f"{name}.{part}", config.num_kv_heads, config.head_dim, tp) for part in ("k_proj", "v_proj")
        ]
        self.heads = [part.size // config.head_dim for part in parts]
        self.qkv_proj = ColumnParallelLinear(config.hidden_size, parts, qkv_bias, config.fp8)
        self.o_proj = RowParallelLinear(f"{name}.o_proj", q_size, config.hidden_size, tp, output_bias, config.fp8)
        self.q_norm = RMSNorm(f"{name}.q_norm", config.head_dim, config.rms_norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(f"{name}.k_norm", config.head_dim, config.rms_norm_eps) if qk_norm else None

    def project(
        self, x: Tensor, positions: Tensor, cache: LayerCache, slots: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """q of the tokens `x [T, H]`, [T, heads, head_dim], which is `out` if given; stores keys and values."""
        return self.rotary_store(self.qkv_proj(x).view(x.shape[0], -1, self.head_dim), positions, cache, slots, out)

    def attend(self, q: Tensor, cache: LayerCache, metadata: AttentionMetadata, out: Tensor | None = None) -> Tensor:
        """`[T, heads, head_dim]`, which is `out` if given."""
        kv, sinks = LayerKV(*cache, self.kv_scales), None if self.sinks is None else self.sinks.weight
        return self.backend.forward(q, kv, metadata, self.scale, out, self.window, sinks)

    def output(self, attended: Tensor) -> Tensor:
        """`[T, heads, head_dim] -> [T, H]`"""
        projected: Tensor = self.o_proj(attended.flatten(1))
        return projected

    def rotary_store(
        self, qkv: Tensor, positions: Tensor, cache: LayerCache, slots: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Normalise and rotate q and k, and store k and v in the cache; returns q, as `out`."""
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        kv = LayerKV(*cache, self.kv_scales)
        store = rotary_store if runs_triton(qkv) and self.backend.is_capturable else rotary_store_reference
        return store(qkv, norms, self.rotary.cos_sin, positions, kv, slots, out)
