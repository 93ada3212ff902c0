"""Calls that launch the kernels as the wrappers of `kernels` do, on the smallest tensors that have their shapes."""

from __future__ import annotations

import torch

from kernels import activation, decode_step, norm
from kernels.attention import decode as decode_attention
from kernels.attention import latent as latent_attention
from kernels.attention import prefill as prefill_attention
from kernels.attention.backends import LayerKV
from kernels.cache import latent_store
from kernels.cache.kv_store import FP8_DTYPE
from kernels.cache.rotary_store import HeadNorms, rotary_store
from kernels.experts import expert_products, moe
from kernels.linear import fp8_gemm, fp8_numbers
from kernels.sampling import keep_threshold, sampler


def empty_kv(dtype: torch.dtype, head_dim: int = 128) -> LayerKV:
    """A cache of one block with 8 KV heads."""
    width = head_dim // 2 + 2 if dtype == torch.uint8 else head_dim + 2 if dtype == torch.int8 else head_dim
    keys = torch.zeros(1, 16, 8, width).to(dtype)
    return LayerKV(keys, keys, torch.ones(2, 8) if dtype == FP8_DTYPE else None)


def decode(
    cache: torch.dtype, head_dim: int = 128, group: int = 2, dtype: torch.dtype = torch.bfloat16, window: int = 0
) -> None:
    """Decode attention of 8 sequences with contexts of up to 8,192 tokens and 8 KV heads, in several splits; with a
    window, also with sinks."""
    q = torch.zeros(8, 8 * group, head_dim, dtype=dtype)
    contexts, tables = torch.zeros(8, dtype=torch.int32), torch.zeros(8, 512, dtype=torch.int32)
    sinks = q[0, :, 0] if window else None
    decode_attention.decode_attention(
        q, empty_kv(cache, head_dim), contexts, tables, 1.0, 8192, window=window, sinks=sinks
    )


def prefill(
    cache: torch.dtype,
    head_dim: int = 128,
    group: int = 2,
    dtype: torch.dtype = torch.bfloat16,
    tokens: int = 8192,
    window: int = 0,
) -> None:
    """Attention of one chunk after a prefix: a chunk of 8,192 tokens takes one split, short ones several; with a
    window, also with sinks."""
    q = torch.zeros(tokens, 8 * group, head_dim, dtype=dtype)
    bounds, contexts = torch.tensor([0, tokens], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    tables = torch.zeros(1, 512, dtype=torch.int32)
    sinks = q[0, :, 0] if window else None
    prefill_attention.prefill_attention(
        q, empty_kv(cache, head_dim), bounds, contexts, tables, 1.0, tokens, 8192, window=window, sinks=sinks
    )


def latent(tokens: int = 1, heads: int = 16) -> None:
    """Latent attention of DeepSeek-V2-Lite: 8 decodes, or one chunk; and the store of latents."""
    rows = 8 if tokens == 1 else 1
    q, latents = (torch.zeros(n, heads, 576, dtype=torch.bfloat16) for n in (rows * tokens, 16))
    kv = LayerKV(latents[None, :, :1], latents[None, :, :1, :512])
    bounds, contexts = torch.zeros(rows + 1, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
    tables, out = torch.zeros(rows, 512, dtype=torch.int32), torch.zeros(rows * tokens, heads, 512, dtype=q.dtype)
    latent_attention.latent_attention(q, kv, bounds, contexts, tables, 1.0, tokens, 8192, out)
    positions, slots = torch.zeros(2, rows * tokens, dtype=torch.int64)
    parts, weight, table = q[..., 512:], q[0, 0, :512], torch.zeros(64, 64)
    latent_store.latent_store_triton(parts, q[:, 0], weight, 1e-6, table, positions, kv.keys, slots, q)


def norms() -> None:
    """Norms of 64 tokens of Qwen3-0.6B."""
    x, weight = torch.zeros(64, 1024, dtype=torch.bfloat16), torch.ones(1024, dtype=torch.bfloat16)
    norm.rms_norm_triton(x, weight, 1e-6)
    norm.add_rms_norm_triton(x, x, weight, 1e-6)


def store(cache: torch.dtype, head_dim: int = 128, group: int = 2, is_normed: bool = True) -> None:
    """Keys and values of 64 tokens and 8 KV heads, with norms and rotary embedding."""
    positions, slots = torch.zeros(2, 64, dtype=torch.int64)
    kv, qkv = empty_kv(cache, head_dim), torch.zeros(64, 8 * group + 16, head_dim, dtype=torch.bfloat16)
    weight = torch.ones(head_dim, dtype=torch.bfloat16)
    head_norms = HeadNorms(weight, weight, 1e-6) if is_normed else None
    rotary_store(qkv, head_norms, torch.zeros(1024, head_dim), positions, kv, slots)


def after_attention() -> None:
    """A gated MLP's activation, experts (Qwen3-30B-A3B) and sampling of 64 tokens."""
    activation.silu_and_mul_triton(torch.zeros(64, 6144, dtype=torch.bfloat16))
    x = torch.zeros(64, 2048, dtype=torch.bfloat16)
    w13, w2 = torch.zeros(1, dtype=torch.bfloat16).expand(128, 1536, 2048), x[:1, :1].expand(128, 2048, 768)
    moe.fused_moe_triton(x, torch.zeros(64, 128, dtype=torch.bfloat16), w13, w2, 8, True)
    thresholds(torch.bfloat16)
    zeros, integers = torch.zeros(64), torch.zeros(64, dtype=torch.int64)
    sampler.sample_triton(torch.zeros(64, 151936, dtype=torch.bfloat16), zeros, zeros, None, integers, integers)


def thresholds(dtype: torch.dtype) -> None:
    """The limits top_k and top_p of 64 rows of logits."""
    zeros, top_k = torch.zeros(64), torch.zeros(64, dtype=torch.int32)
    keep_threshold.keep_threshold_triton(torch.zeros(64, 151936, dtype=dtype), zeros, top_k, zeros)


def around_decode() -> None:
    """Positions and slots before a decode step, and its tokens after it."""
    integers = torch.zeros(64, dtype=torch.int64)
    decode_step.begin_decode_triton(integers, torch.zeros(64, 512, dtype=torch.int32), 16)
    decode_step.end_decode_triton(integers, integers, integers, torch.zeros(8, 64, dtype=torch.int64), integers[:1])


def product_in_float8(tokens: int = 2048, block: tuple[int, int] = (128, 128), kept: torch.dtype | None = None) -> None:
    """A product with weights in float8, whose inputs are quantised, or stay in the dtype `kept`."""
    x, weight = torch.zeros(tokens, 4096, dtype=kept or torch.bfloat16), torch.zeros(6144, 4096).to(FP8_DTYPE)
    out, scales = torch.empty(tokens, 6144, dtype=x.dtype), torch.ones(6144 // block[0], 4096 // block[1])
    rows, row_scales = (x, None) if kept else fp8_numbers.quantize_tokens(x, block[1])
    fp8_gemm.fp8_gemm(rows, row_scales, weight, scales, block, out)


def experts_in_float8(tokens: int = 64, block: tuple[int, int] = (128, 128)) -> None:
    """Experts (Qwen3-30B-A3B) with weights in float8; inputs are quantised from 8.9 on."""
    x, weight = torch.zeros(tokens, 2048, dtype=torch.bfloat16), torch.zeros(1, 1, 1, dtype=FP8_DTYPE)
    w13, w2 = (
        expert_products.Fp8Stack(weight.expand(128, n, k), torch.ones(1), block) for n, k in ((1536, 2048), (2048, 768))
    )
    moe.fused_moe_triton(x, torch.zeros(tokens, 128, dtype=torch.bfloat16), w13, w2, 8, True)
