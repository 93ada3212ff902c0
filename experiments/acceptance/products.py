"""How fast are matrix products, of experts too, and latent attention, as shares of what the device can do?

A share is the least time over the measured one. The least time is the longer one of two: what must be read at the
bandwidth of a copy, and the arithmetic at the rate of a large product in bfloat16, or twice that rate in float8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import yaml
from torch import Tensor
from torch.nn import functional

from experiments import ROOT
from experiments.acceptance.attention import CACHE_BYTES, captured, ceilings, paged_batch
from experiments.acceptance.context import Context, median_s
from kernels.attention.latent import latent_attention, one_token_each
from kernels.cache.layer_kv import LayerKV
from kernels.experts.expert_products import ExpertWeights, Fp8Stack
from kernels.experts.moe import fused_moe
from kernels.linear.fp8_linear import fp8_linear
from kernels.linear.fp8_numbers import Block, quantize_weight

MODEL = "qwen3-8b"
GEMM_TOKENS = (1, 64, 8192)
EXPERTS, TOP_K, HIDDEN, WIDTH = 128, 8, 2048, 768  # of Qwen3-30B-A3B
EXPERT_TOKENS = (1, 16, 128, 1024, 8192)
RANK, ROPE = 512, 64  # of DeepSeek-V3
LATENTS = ((16, 64, 4096), (128, 64, 4096), (16, 1, 32768))  # query heads, batch, context


def linear(context: Context) -> None:
    """The linear layers of a model in bfloat16 and in float8, for decodes and for a full step of prompts."""
    bandwidth, flops = ceilings(context)
    shape = yaml.safe_load((ROOT / "conf" / "model" / f"{'tiny' if context.rehearse else MODEL}.yaml").read_text())
    hidden, wide = shape["hidden_size"], shape["intermediate_size"]
    q_size, kv_size = (shape[name] * shape["head_dim"] for name in ("num_attention_heads", "num_kv_heads"))
    for inner, outer in ((hidden, q_size + 2 * kv_size), (q_size, hidden), (hidden, 2 * wide), (wide, hidden)):
        for kind, block in (("bf16", None), ("fp8", (1, inner)), ("fp8_block", (128, 128))):
            products = _products(context, outer, inner, block)
            size = 2 if block is None else 1
            for tokens in GEMM_TOKENS if not context.rehearse else (2,):
                x = torch.randn(tokens, inner, device=context.device, dtype=context.dtype)
                least = outer * inner * size * max(1 / bandwidth, tokens / flops)
                what = f"{kind} layer of {shape['name']}, {inner} x {outer}, {tokens} tokens"
                used = products if tokens < max(GEMM_TOKENS) else products[:1]
                _report(context, what, least, [partial(product, x) for product in used])


def experts(context: Context) -> None:
    """The experts of a layer of Qwen3-30B-A3B, from the router's logits to the sum of the outputs."""
    bandwidth, flops = ceilings(context)
    count, hidden, width = (EXPERTS, HIDDEN, WIDTH) if not context.rehearse else (8, 64, 32)
    for kind, size in (("bf16", 2), ("fp8_block", 1)):
        w13, w2 = (_stack(context, count, *shape, kind) for shape in ((2 * width, hidden), (hidden, width)))
        bytes_each = 3 * hidden * width * size
        for tokens in EXPERT_TOKENS if not context.rehearse else (2,):
            x, logits = (torch.randn(tokens, n, device=context.device, dtype=context.dtype) for n in (hidden, count))
            used = len(logits.topk(TOP_K).indices.unique())
            least = bytes_each * max(used / bandwidth, tokens * TOP_K / flops)
            _report(
                context,
                f"{kind} experts, {tokens} tokens",
                least,
                [partial(fused_moe, x, logits, w13, w2, TOP_K, True)],
            )


def latent(context: Context) -> None:
    """Decodes with the latent attention of DeepSeek-V3, for a rank's share of the heads and for all."""
    bandwidth, flops = ceilings(context)
    if not context.is_cuda:
        return
    for heads, batch, length in LATENTS:
        read = batch * length * (RANK + ROPE) * context.dtype.itemsize
        copies = max(2, min(16, CACHE_BYTES // read))
        caches, q, metadata = paged_batch(context, (heads, 1, RANK + ROPE), [], [length] * batch, copies)
        latents = [LayerKV(kv.keys, kv.keys[..., :RANK]) for kv in caches]
        out = latents[0].empty_output(q)
        contexts, tables = metadata.decode_context_lens, metadata.decode_block_tables
        bounds, scale = one_token_each(contexts), (RANK + ROPE) ** -0.5

        least = max(read / bandwidth, 2 * batch * heads * length * (2 * RANK + ROPE) / flops)
        attend = partial(
            latent_attention,
            q,
            cu_seqlens_q=bounds,
            context_lens=contexts,
            block_tables=tables,
            scale=scale,
            max_seqlen_q=1,
            max_context=length,
            out=out,
        )
        calls = [partial(attend, kv=kv) for kv in latents]
        _report(context, f"latent decodes of {heads} heads, {batch} x {length}", least, calls)


def _report(context: Context, name: str, least_s: float, calls: Sequence[Callable[[], object]]) -> None:
    def run() -> None:
        for call in calls:
            call()

    seconds = median_s(context, captured(context, run), launches=len(calls))
    context.record[name] = {"share": least_s / seconds, "us": seconds * 1e6}
    context.add(name, f"{least_s / seconds:.0%} of the limit, {seconds * 1e6:,.1f} us")


def _products(context: Context, n: int, k: int, block: Block | None) -> list[Callable[[Tensor], Tensor]]:
    """Products with random matrices [n, k], together larger than any cache on the chip."""
    copies = 1 if not context.is_cuda else max(2, min(16, CACHE_BYTES // (2 * n * k)))
    made: list[Callable[[Tensor], Tensor]] = []
    for _ in range(copies):
        weight = torch.randn(n, k, device=context.device, dtype=context.dtype)
        if block is None:
            made.append(partial(functional.linear, weight=weight))
        else:
            quantized, scales = quantize_weight(weight, block)
            made.append(partial(fp8_linear, weight=quantized, scales=scales, block=block))
    return made


def _stack(context: Context, count: int, n: int, k: int, kind: str) -> ExpertWeights:
    """A random matrix [n, k] per expert."""
    weight = torch.randn(count, n, k, device=context.device, dtype=context.dtype) * k**-0.5
    if kind == "bf16":
        return weight
    pairs = [quantize_weight(each, (128, 128)) for each in weight]
    return Fp8Stack(torch.stack([w for w, _ in pairs]), torch.stack([s for _, s in pairs]), (128, 128))
