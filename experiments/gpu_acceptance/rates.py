"""How fast are attention and matrix products, as shares of what the device can do?"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional

from experiments.gpu_acceptance.common import Check, Context, Outcome, captured, median_s, shape_of
from experiments.gpu_acceptance.kernels import BLOCK_SIZE, HEADS, paged_batch, usable_backends
from kernels.attention import available_backends, select_backend
from kernels.kv_store import FP8_DTYPE, quantize

DECODES = [(1, 32768), (8, 8192), (32, 4096), (64, 2048), (128, 1024), (256, 1024)]  # batch, context
PREFILLS = [(1, 8192), (4, 2048), (16, 512)]  # prompts, tokens of each
MAX_CONTEXT = 4096  # the engine's bound on contexts, which its graphs are captured with
GEMM_TOKENS = 8192
DECODE_GOAL = 0.85
CACHE_BYTES = 1 << 30  # larger than any cache on the chip, so that each launch reads from memory


def rates(context: Context) -> Outcome:
    """Copy bandwidth (bytes read and written) and the rate of a large matrix product, on random data."""
    size = 1 << (32 if context.is_cuda else 20)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=context.device)
    target = torch.empty_like(source)
    bandwidth = 2 * size / median_s(context, lambda: target.copy_(source))
    n = 8192 if context.is_cuda else 128
    a, b = (torch.randn(n, n, device=context.device, dtype=context.dtype) for _ in range(2))
    flops = 2 * n**3 / median_s(context, lambda: a @ b)
    context.rates.update(bytes_per_s=bandwidth, flops=flops)
    checks = [
        Check("device copy, read and written", f"{bandwidth / 1e12:.2f} TB/s"),
        Check(f"matrix product {n}x{n}x{n} in {context.dtype}", f"{flops / 1e12:.0f} TFLOP/s"),
    ]
    return Outcome(checks, dict(context.rates))


def attention(context: Context) -> Outcome:
    """Decode attention as a share of the bandwidth, prefill attention as a share of the matrix rate."""
    _need_rates(context)
    outcome = Outcome()
    for model, heads in HEADS.items():
        for name in usable_backends(context, heads[2]):
            decodes, prefills = (DECODES, PREFILLS) if not context.quick else ([(2, 64)], [(1, 64)])
            for batch, length in decodes:
                _decode(context, outcome, model, name, batch, length)
            for prompts, length in prefills:
                share, seconds = _prefill_share(context, name, heads, prompts, length)
                outcome.record[f"prefill/{model}/{name}/{prompts}x{length}"] = {"seconds": seconds, "share": share}
                outcome.checks.append(
                    Check(f"prefill attention {model} {name}, {prompts} x {length}", f"{share:.0%} of matrix rate")
                )
    return outcome


def _need_rates(context: Context) -> None:
    if not context.rates:
        rates(context)


def _decode(context: Context, outcome: Outcome, model: str, name: str, batch: int, length: int) -> None:
    """One batch with a cache of the model's dtype and, if the device supports it, with a float8 cache."""
    dtypes: dict[str, torch.dtype] = {"": context.dtype}
    if available_backends(context.device, context.dtype, HEADS[model][2], BLOCK_SIZE, FP8_DTYPE)[name] is None:
        dtypes[" fp8"] = FP8_DTYPE
    for suffix, dtype in dtypes.items():
        share, seconds = _decode_share(context, name, HEADS[model], batch, length, dtype)
        outcome.record[f"decode/{model}/{name}{suffix}/{batch}x{length}"] = {"seconds": seconds, "share": share}
        what, value = f"decode attention {model} {name}{suffix}, {batch} x {length}", f"{share:.0%} of bandwidth"
        if suffix:
            outcome.checks.append(Check(what, value))
        else:
            passed = context.judged(share >= DECODE_GOAL)
            outcome.checks.append(Check(what, value, f">= {DECODE_GOAL:.0%}", passed))


def _decode_share(
    context: Context, name: str, heads: tuple[int, int, int], batch: int, length: int, dtype: torch.dtype
) -> tuple[float, float]:
    """(share of the copy bandwidth, seconds of one layer) with a cache of `dtype`.

    Splits are chosen by a bound on the context, as in the engine's graphs. One graph uses several caches in turn.
    """
    num_heads, kv_heads, head_dim = heads
    read = 2 * batch * length * kv_heads * head_dim * dtype.itemsize
    read += 2 * batch * num_heads * head_dim * context.dtype.itemsize
    copies = 1 if not context.is_cuda else max(2, min(16, CACHE_BYTES // read))
    caches, q, k, v, metadata = paged_batch(context, heads, [], [length] * batch, copies)
    # The bound on the context is that of the engine's graphs. Storing to the cache is another kernel.
    no_slots = metadata.slot_mapping[:0]
    metadata = replace(metadata, max_decode_context=max(length, MAX_CONTEXT), slot_mapping=no_slots)
    backend = select_backend(name, context.device, context.dtype, head_dim, BLOCK_SIZE, dtype)  # type: ignore[arg-type]
    scales = None
    if dtype == FP8_DTYPE:
        scales = torch.ones(2, kv_heads, device=context.device)
        caches = [(quantize(keys, scales[0]), quantize(values, scales[1])) for keys, values in caches]
    out = torch.empty_like(q)

    def layers() -> None:
        for keys, values in caches:
            backend.forward(q, k[:0], v[:0], keys, values, metadata, head_dim**-0.5, out, scales)

    seconds = median_s(context, captured(context, layers), launches=copies)
    return read / seconds / context.rates["bytes_per_s"], seconds


def _prefill_share(
    context: Context, name: str, heads: tuple[int, int, int], prompts: int, length: int
) -> tuple[float, float]:
    """(share of the matrix rate, seconds of one layer); only the visible half of the scores counts."""
    num_heads, _, head_dim = heads
    caches, q, k, v, metadata = paged_batch(context, heads, [(length, length)] * prompts, [])
    backend = select_backend(name, context.device, context.dtype, head_dim, BLOCK_SIZE)  # type: ignore[arg-type]
    out = torch.empty_like(q)
    seconds = median_s(context, lambda: backend.forward(q, k, v, *caches[0], metadata, head_dim**-0.5, out))
    flops = 4 * num_heads * head_dim * prompts * length * (length + 1) // 2
    return flops / seconds / context.rates["flops"], seconds


def gemm(context: Context) -> Outcome:
    """The linear layers of the models in a full prefill step, as shares of the matrix rate."""
    _need_rates(context)
    outcome = Outcome()
    for model in HEADS:
        shape = shape_of(model)
        hidden, wide = shape["hidden_size"], shape["intermediate_size"]
        q_size, kv_size = (shape[name] * shape["head_dim"] for name in ("num_attention_heads", "num_kv_heads"))
        sizes = {
            "qkv": (hidden, q_size + 2 * kv_size),
            "o": (q_size, hidden),
            "gate_up": (hidden, 2 * wide),
            "down": (wide, hidden),
        }
        tokens = GEMM_TOKENS if not context.quick else 8
        for name, (inner, outer) in sizes.items():
            x, weight = (torch.randn(n, inner, device=context.device, dtype=context.dtype) for n in (tokens, outer))
            seconds = median_s(context, lambda x=x, weight=weight: functional.linear(x, weight))  # type: ignore[misc]
            share = 2 * tokens * inner * outer / seconds / context.rates["flops"]
            outcome.record[f"{model}/{name}/{tokens}"] = {"seconds": seconds, "share": share}
            outcome.checks.append(Check(f"GEMM {model} {name}, {tokens} tokens", f"{share:.0%} of matrix rate"))
    return outcome
