"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), absorbed, on a paged cache of latents.

A token's keys and values of all heads are products of its latent c with matrices of each head, `k = K c` and `v = V c`.
The scores q·(K c) = (Kᵀq)·c need no keys, and the output Σ w V c = V (Σ w c) needs no values:

    x ─► q [heads, nope + rope] ─► Kᵀ q, rotated q   [heads, rank + rope] ──► attention ─► [heads, rank] ─► V ─► output
     └─► latent, normed, and key, rotated            [rank + rope] in the cache ──┘ (as one KV head)

So attention is that of one KV head, whose values are the first `rank` elements of its keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from engine.models.layers.attention import LayerCache
from engine.models.layers.checkpoint import CheckpointTensor
from engine.models.layers.linear import ColumnParallelLinear, Layer, RMSNorm, RowParallelLinear, Rows, parameter
from engine.models.layers.parallel import TensorParallel
from engine.models.layers.rotary import Rotary
from engine.models.model_config import ModelConfig
from engine.models.rope_scaling import YarnRopeScaling
from kernels.attention.backends import AttentionBackend, AttentionMetadata, LayerKV
from kernels.cache.latent_store import latent_store

_NORM_EPS = 1e-6  # of these norms in transformers, whatever `rms_norm_eps` is


class HeadMatrices(Layer):
    """The matrices that make keys and values of a latent, `[heads, key + value, rank]`, of this rank's heads."""

    def __init__(self, name: str, num_heads: int, rows_per_head: int, rank: int, tp: TensorParallel) -> None:
        super().__init__()
        self.rows = Rows.shard(name, num_heads * rows_per_head, tp)
        self.weight = parameter(num_heads // tp.size, rows_per_head, rank)

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        yield self.rows.checkpoint_tensor(self.weight.flatten(0, 1))


class LatentAttention(nn.Module):
    """As `engine.models.layers.attention.Attention`: `project`, then `attend`, then `output`."""

    def __init__(
        self, name: str, config: ModelConfig, tp: TensorParallel, backend: AttentionBackend, rotary: Rotary
    ) -> None:
        super().__init__()
        sizes, all_heads, scaling = config.latent, config.num_attention_heads, config.rope_scaling
        assert sizes is not None
        self.backend = backend
        self.rotary = rotary
        self.nope = sizes.qk_nope_head_dim
        self.heads = [all_heads // tp.size, 1, 1]
        self.head_dim, self.output_dim = sizes.width, sizes.kv_lora_rank
        self.scale = config.head_dim**-0.5
        if isinstance(scaling, YarnRopeScaling):
            self.scale *= scaling.score_factor
        q, rank = all_heads * config.head_dim, sizes.q_lora_rank
        first = Rows(f"{name}.q_a_proj", rank, 0, rank) if rank else Rows.shard(f"{name}.q_proj", q, tp)
        latent = Rows(f"{name}.kv_a_proj_with_mqa", sizes.width, 0, sizes.width)
        self.in_proj = ColumnParallelLinear(config.hidden_size, [first, latent])
        self.in_sizes = [first.size, latent.size]
        self.q_norm = RMSNorm(f"{name}.q_a_layernorm", rank, _NORM_EPS) if rank else None
        self.q_proj = ColumnParallelLinear(rank, [Rows.shard(f"{name}.q_b_proj", q, tp)]) if rank else None
        self.kv_norm = RMSNorm(f"{name}.kv_a_layernorm", sizes.kv_lora_rank, _NORM_EPS)
        rows = sizes.qk_nope_head_dim + sizes.v_head_dim
        self.matrices = HeadMatrices(f"{name}.kv_b_proj", all_heads, rows, sizes.kv_lora_rank, tp)
        self.o_proj = RowParallelLinear(f"{name}.o_proj", all_heads * sizes.v_head_dim, config.hidden_size, tp)

    def project(
        self, x: Tensor, positions: Tensor, cache: LayerCache, slots: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Absorbed q of the tokens `x [T, H]`, [T, heads, rank + rope], which is `out` if given; stores latents."""
        q, latent = self.in_proj(x).split(self.in_sizes, -1)
        if self.q_norm is not None and self.q_proj is not None:
            q = self.q_proj(self.q_norm(q))
        q = q.unflatten(-1, (self.heads[0], -1))
        if out is None:
            out = torch.empty(*q.shape[:2], self.head_dim, dtype=x.dtype, device=x.device)
        keys = self.matrices.weight[:, : self.nope]
        out[..., : self.output_dim] = torch.bmm(q[..., : self.nope].transpose(0, 1), keys).transpose(0, 1)
        latent_store(
            q[..., self.nope :],
            latent,
            self.kv_norm.weight,
            _NORM_EPS,
            self.rotary.cos_sin,
            positions,
            cache[0],
            slots,
            out,
        )
        return out

    def attend(self, q: Tensor, cache: LayerCache, metadata: AttentionMetadata, out: Tensor | None = None) -> Tensor:
        """`[T, heads, rank]`, which is `out` if given."""
        latents = cache[0]
        return self.backend.forward(q, LayerKV(latents, latents[..., : self.output_dim]), metadata, self.scale, out)

    def output(self, attended: Tensor) -> Tensor:
        """`[T, heads, rank] -> [T, H]`"""
        values = self.matrices.weight[:, self.nope :].transpose(1, 2)
        projected: Tensor = self.o_proj(torch.bmm(attended.transpose(0, 1), values).transpose(0, 1).flatten(1))
        return projected
