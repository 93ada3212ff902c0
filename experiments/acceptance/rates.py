"""How fast are attention and matrix products, as shares of what the device can do?"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional

from experiments.acceptance.common import Context, captured, median_s, shape_of
from experiments.acceptance.kernels import BLOCK_SIZE, HEADS, paged_batch, usable_backends
from kernels.attention.backends import LayerKV, available_backends, select_backend
from kernels.cache.kv_store import FP8_DTYPE, quantize

DECODES = [(1, 32768), (8, 8192), (32, 4096), (64, 2048), (128, 1024), (256, 1024)]  # batch, context
PREFILLS = [(1, 8192), (4, 2048), (16, 512)]  # prompts, tokens of each
MAX_CONTEXT = 4096  # the engine's bound on contexts, which its graphs are captured with
GEMM_TOKENS = 8192
DECODE_GOAL, PREFILL_GOAL = 0.85, 0.60
DECODE_GOALS, PREFILL_GOAL_LENGTH = ((8, 8192), (128, 1024)), 8192  # where the goals hold
CACHE_BYTES = 1 << 30  # larger than any cache on the chip, so that each launch reads from memory


def device(context: Context) -> None:
    """What the device can do."""
    bandwidth, flops = ceilings(context)
    context.record |= {"bytes_per_s": bandwidth, "flops": flops}
    context.add("device copy, read and written", f"{bandwidth / 1e12:.2f} TB/s")
    context.add(f"matrix product in {context.dtype}", f"{flops / 1e12:.0f} TFLOP/s")
    if context.is_cuda:
        properties = torch.cuda.get_device_properties(context.device)
        context.record |= {"multiprocessors": properties.multi_processor_count, "memory_bytes": properties.total_memory}
        context.add("device", f"{properties.name}, {properties.multi_processor_count} multiprocessors")


def ceilings(context: Context) -> tuple[float, float]:
    """(bytes/s of a large copy, read and written; FLOP/s of a large matrix product), on random data."""
    size = 1 << (32 if context.is_cuda else 20)
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=context.device)
    target = torch.empty_like(source)
    bandwidth = 2 * size / median_s(context, lambda: target.copy_(source))
    n = 8192 if context.is_cuda else 128
    a, b = (torch.randn(n, n, device=context.device, dtype=context.dtype) for _ in range(2))
    return bandwidth, 2 * n**3 / median_s(context, lambda: a @ b)


def attention(context: Context) -> None:
    """Decode attention as a share of the bandwidth, prefill attention as a share of the matrix rate."""
    bandwidth, flops = ceilings(context)
    decodes, prefills = (DECODES, PREFILLS) if not context.rehearse else ([(2, 64)], [(1, 64)])
    for model, heads in HEADS.items():
        for name in usable_backends(context, heads[2]):
            for batch, length in decodes:
                _decode(context, model, name, batch, length, bandwidth)
            for prompts, length in prefills:
                seconds = prefill_seconds(context, name, heads, prompts, length)
                share = prefill_flops(heads, prompts, length) / seconds / flops
                context.record[f"prefill/{model}/{name}/{prompts}x{length}"] = {"seconds": seconds, "share": share}
                has_goal = name == "triton" and length >= PREFILL_GOAL_LENGTH
                context.add(
                    f"prefill attention {model} {name}, {prompts} x {length}", f"{share:.0%} of matrix rate",
                    f">= {PREFILL_GOAL:.0%}" if has_goal else "",
                    context.judged(share >= PREFILL_GOAL) if has_goal else None,
                )  # fmt: skip


def _decode(context: Context, model: str, name: str, batch: int, length: int, bandwidth: float) -> None:
    """One batch with a cache of the model's dtype and, if the device supports it, with a float8 cache."""
    heads = HEADS[model]
    dtypes: dict[str, torch.dtype] = {"": context.dtype}
    if available_backends(context.device, context.dtype, heads[2], BLOCK_SIZE, FP8_DTYPE)[name] is None:
        dtypes[" fp8"] = FP8_DTYPE
    for suffix, dtype in dtypes.items():
        seconds = decode_seconds(context, name, heads, batch, length, dtype)
        share = decode_bytes(context, heads, batch, length, dtype) / seconds / bandwidth
        context.record[f"decode/{model}/{name}{suffix}/{batch}x{length}"] = {"seconds": seconds, "share": share}
        has_goal = name == "triton" and not suffix and (batch, length) in DECODE_GOALS
        context.add(
            f"decode attention {model} {name}{suffix}, {batch} x {length}", f"{share:.0%} of bandwidth",
            f">= {DECODE_GOAL:.0%}" if has_goal else "",
            context.judged(share >= DECODE_GOAL) if has_goal else None,
        )  # fmt: skip


def decode_bytes(context: Context, heads: tuple[int, int, int], batch: int, length: int, dtype: torch.dtype) -> int:
    """Bytes that decode attention of one layer must move: the cache, queries and outputs."""
    num_heads, kv_heads, head_dim = heads
    return 2 * batch * head_dim * (length * kv_heads * dtype.itemsize + num_heads * context.dtype.itemsize)


def decode_seconds(
    context: Context, name: str, heads: tuple[int, int, int], batch: int, length: int, dtype: torch.dtype
) -> float:
    """Seconds of one layer with a cache of `dtype`.

    Splits are chosen by a bound on the context, as in the engine's graphs. One graph uses several caches in turn.
    """
    _, kv_heads, head_dim = heads
    read = decode_bytes(context, heads, batch, length, dtype)
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
            backend.forward(q, (k[:0], v[:0]), LayerKV(keys, values, scales), metadata, head_dim**-0.5, out)

    return median_s(context, captured(context, layers), launches=copies)


def prefill_flops(heads: tuple[int, int, int], prompts: int, length: int) -> int:
    """Operations of prefill attention of one layer; only the visible half of the scores counts."""
    return 4 * heads[0] * heads[2] * prompts * length * (length + 1) // 2


def prefill_seconds(context: Context, name: str, heads: tuple[int, int, int], prompts: int, length: int) -> float:
    """Seconds of one layer."""
    caches, q, k, v, metadata = paged_batch(context, heads, [(length, length)] * prompts, [])
    backend = select_backend(name, context.device, context.dtype, heads[2], BLOCK_SIZE)  # type: ignore[arg-type]
    out = torch.empty_like(q)
    kv = LayerKV(*caches[0])
    return median_s(context, lambda: backend.forward(q, (k, v), kv, metadata, heads[2] ** -0.5, out))


def gemm(context: Context) -> None:
    """The linear layers of the models in a full prefill step, as shares of the matrix rate."""
    _, flops = ceilings(context)
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
        tokens = GEMM_TOKENS if not context.rehearse else 8
        for name, (inner, outer) in sizes.items():
            x, weight = (torch.randn(n, inner, device=context.device, dtype=context.dtype) for n in (tokens, outer))
            seconds = median_s(context, lambda x=x, weight=weight: functional.linear(x, weight))  # type: ignore[misc]
            share = 2 * tokens * inner * outer / seconds / flops
            context.record[f"{model}/{name}/{tokens}"] = {"seconds": seconds, "share": share}
            context.add(f"GEMM {model} {name}, {tokens} tokens", f"{share:.0%} of matrix rate")
