"""How fast is attention, as shares of what the device can do?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import metadata as packages

import torch
from torch import Tensor

from experiments.acceptance.context import Context, median_s
from kernels.attention.backends import AttentionBackend, AttentionMetadata, LayerKV, available_backends, select_backend
from kernels.cache.kv_store import FP8_DTYPE, quantize

Heads = tuple[int, int, int]  # query heads, KV heads, elements of a head

HEADS: dict[str, Heads] = {"qwen3-0.6b": (16, 8, 128), "qwen3-8b": (32, 8, 128)}
BLOCK_SIZE = 16
DECODES = [(1, 32768), (8, 8192), (32, 4096), (64, 2048), (128, 1024), (256, 1024)]  # batch, context
PREFILLS = [(1, 8192), (4, 2048), (16, 512)]  # prompts, tokens of each
MAX_CONTEXT = 4096  # the engine's bound on contexts, which its graphs are captured with
# Least shares of the bandwidth and of the matrix rate, and where they are goals of the Triton kernels.
DECODE_GOAL, PREFILL_GOAL = 0.85, 0.60
GOALS = ((8, 8192), (128, 1024)), ((1, 8192),)
CACHE_BYTES = 1 << 30  # larger than any cache on the chip, so that each launch reads from memory


def device(context: Context) -> None:
    """What the device can do."""
    bandwidth, flops = ceilings(context)
    versions = {name: packages.version(name) for name in ("torch", "triton", "transformers")}
    context.record |= {"bytes_per_s": bandwidth, "flops": flops, "versions": versions}
    context.add("device copy, read and written", f"{bandwidth / 1e12:.2f} TB/s")
    context.add(f"matrix product in {context.dtype}", f"{flops / 1e12:.0f} TFLOP/s")


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
            for dtype in cache_dtypes(context, name, heads[2]):
                what = f"decode attention {model} {name}{' fp8' if dtype == FP8_DTYPE else ''}"
                for shape in decodes:
                    share = decode_share(context, name, heads, shape, dtype, bandwidth)
                    has_goal = name == "triton" and dtype != FP8_DTYPE and shape in GOALS[0]
                    _report(context, what, shape, share, "bandwidth", DECODE_GOAL if has_goal else None)
            for shape in prefills:
                share = prefill_share(context, name, heads, shape, flops)
                has_goal = name == "triton" and shape in GOALS[1]
                what = f"prefill attention {model} {name}"
                _report(context, what, shape, share, "matrix rate", PREFILL_GOAL if has_goal else None)


def _report(
    context: Context, what: str, shape: tuple[int, int], share: float, of: str, goal: float | None = None
) -> None:
    name = f"{what}, {shape[0]} x {shape[1]}"
    context.record[name] = share
    wanted, passed = ("", None) if goal is None else (f">= {goal:.0%}", context.judged(share >= goal))
    context.add(name, f"{share:.0%} of {of}", wanted, passed)


def backend_of(context: Context, name: str, head_dim: int, cache_dtype: torch.dtype | None = None) -> AttentionBackend:
    """The attention backend of this name."""
    return select_backend(name, context.device, context.dtype, head_dim, BLOCK_SIZE, cache_dtype)  # type: ignore[arg-type]


def usable_backends(context: Context, head_dim: int) -> list[str]:
    """Names of the attention backends to measure, best first; on a GPU without the reference."""
    reasons = available_backends(context.device, context.dtype, head_dim, BLOCK_SIZE)
    return [name for name, reason in reasons.items() if reason is None and not (context.is_cuda and name == "torch")]


def cache_dtypes(context: Context, name: str, head_dim: int) -> list[torch.dtype]:
    """The model's dtype and, if the backend supports it here, float8."""
    reasons = available_backends(context.device, context.dtype, head_dim, BLOCK_SIZE, FP8_DTYPE)
    return [context.dtype, *([FP8_DTYPE] if reasons[name] is None else [])]


def paged_batch(
    context: Context, heads: Heads, prefills: list[tuple[int, int]], contexts: list[int], copies: int = 1
) -> tuple[list[LayerKV], Tensor, AttentionMetadata]:
    """`copies` random caches, q and metadata.

    `prefills` are (context after the chunk, chunk); blocks are in random order.
    """
    num_heads, kv_heads, head_dim = heads
    generator = torch.Generator(context.device).manual_seed(0)
    all_contexts = [length for length, _ in prefills] + contexts
    counts = [-(-length // BLOCK_SIZE) for length in all_contexts]
    order = torch.randperm(sum(counts), generator=generator, device=context.device).to(torch.int32)
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32, device=context.device)
    for row, blocks in enumerate(order.split(counts)):
        tables[row, : len(blocks)] = blocks
    tokens = sum(chunk for _, chunk in prefills) + len(contexts)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=context.device, dtype=context.dtype)

    shape = (sum(counts), BLOCK_SIZE, kv_heads, head_dim)
    caches = [LayerKV(random(*shape), random(*shape)) for _ in range(copies)]
    q = random(tokens, num_heads, head_dim)
    bounds = torch.tensor([0] + [chunk for _, chunk in prefills], device=context.device).cumsum(0, dtype=torch.int32)
    metadata = AttentionMetadata(
        slot_mapping=torch.full((tokens,), -1, dtype=torch.int64, device=context.device),
        num_prefill_tokens=sum(chunk for _, chunk in prefills),
        cu_seqlens_q=bounds,
        prefill_context_lens=torch.tensor([c for c, _ in prefills], dtype=torch.int32, device=context.device),
        prefill_block_tables=tables[: len(prefills)],
        max_seqlen_q=max((chunk for _, chunk in prefills), default=0),
        max_prefill_context=max((c for c, _ in prefills), default=0),
        decode_context_lens=torch.tensor(contexts, dtype=torch.int32, device=context.device),
        decode_block_tables=tables[len(prefills) :],
        max_decode_context=max(contexts, default=0),
    )
    return caches, q, metadata


def decode_share(
    context: Context, name: str, heads: Heads, shape: tuple[int, int], dtype: torch.dtype, bandwidth: float
) -> float:
    """Share of the bandwidth of one layer's decode attention with a cache of `dtype`.

    Splits are chosen by a bound on the context, as in the engine's graphs. One graph uses several caches in turn.
    """
    batch, length = shape
    num_heads, kv_heads, head_dim = heads
    # What must move: the cache, queries and outputs.
    read = 2 * batch * head_dim * (length * kv_heads * dtype.itemsize + num_heads * context.dtype.itemsize)
    copies = 1 if not context.is_cuda else max(2, min(16, CACHE_BYTES // read))
    caches, q, metadata = paged_batch(context, heads, [], [length] * batch, copies)
    metadata = replace(metadata, max_decode_context=max(length, MAX_CONTEXT))
    backend = backend_of(context, name, head_dim, dtype)
    if dtype == FP8_DTYPE:
        scales = torch.ones(2, kv_heads, device=context.device)
        caches = [LayerKV(quantize(kv.keys, scales[0]), quantize(kv.values, scales[1]), scales) for kv in caches]
    out = torch.empty_like(q)

    def layers() -> None:
        for kv in caches:
            backend.forward(q, kv, metadata, head_dim**-0.5, out)

    return read / median_s(context, captured(context, layers), launches=copies) / bandwidth


def prefill_share(context: Context, name: str, heads: Heads, shape: tuple[int, int], flops: float) -> float:
    """Share of the matrix rate of one layer's prefill attention; only the visible half of the scores counts."""
    prompts, length = shape
    caches, q, metadata = paged_batch(context, heads, [(length, length)] * prompts, [])
    backend, out = backend_of(context, name, heads[2]), torch.empty_like(q)
    seconds = median_s(context, lambda: backend.forward(q, caches[0], metadata, heads[2] ** -0.5, out))
    return 4 * heads[0] * heads[2] * prompts * length * (length + 1) // 2 / seconds / flops


def captured(context: Context, run: Callable[[], object]) -> Callable[[], object]:
    """`run` as a CUDA graph, which takes the host hardly any time to launch; `run` itself on the CPU."""
    if not context.is_cuda:
        return run
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay
