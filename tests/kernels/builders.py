"""Random paged caches for the attention tests, and a naive attention that loops over tokens and KV heads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.attention.backends import AttentionMetadata, LayerKV
from kernels.cache.kv_integers import (
    block_parts,
    dequantize_blocks,
    dequantize_integers,
    quantize_blocks,
    quantize_integers,
)
from kernels.cache.kv_store import dequantize, quantize, store_kv_reference


@dataclass(frozen=True)
class Shape:
    """The sizes and the dtype that a kernel is compiled for."""

    block_size: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Case:
    """A step and its inputs. The slots of the step's own tokens and all unused slots hold NaN."""

    shape: Shape
    q: Tensor
    k: Tensor
    v: Tensor
    k_cache: Tensor
    v_cache: Tensor
    metadata: AttentionMetadata
    prefills: list[tuple[int, int]]
    decodes: list[int]

    @property
    def scale(self) -> float:
        return float(self.shape.head_dim**-0.5)

    @property
    def kv(self) -> LayerKV:
        return LayerKV(self.k_cache, self.v_cache)

    def stored(self, scales: Tensor | None = None) -> LayerKV:
        """The cache, in which the step's own keys and values are stored now."""
        kv = LayerKV(self.k_cache, self.v_cache, scales)
        store_kv_reference(self.k, self.v, kv, self.metadata.slot_mapping)
        return kv


def make_case(
    shape: Shape, prefills: list[tuple[int, int]], decodes: list[int], device: str = "cpu", seed: int = 0
) -> Case:
    """A random step.

    prefills: (tokens of the context, tokens of the chunk) of each chunk.
    decodes: tokens of each context, 0 for padding.
    Blocks are assigned in random order. Entries of block tables beyond a context are out of range.
    """
    generator = torch.Generator().manual_seed(seed)
    size = shape.block_size
    contexts = [context for context, _ in prefills] + decodes
    chunks = [chunk for _, chunk in prefills] + [min(context, 1) for context in decodes]
    counts = [-(-context // size) for context in contexts]
    num_blocks = sum(counts) + 2
    free = torch.randperm(num_blocks, generator=generator).tolist()
    tables = torch.full((len(contexts), max(counts, default=0) + 1), 1 << 30, dtype=torch.int32)
    cache = torch.full((2, num_blocks * size, shape.kv_heads, shape.head_dim), torch.nan)
    new_slots: list[int] = []
    slots: list[int] = []
    for row, (context, chunk, count) in enumerate(zip(contexts, chunks, counts, strict=True)):
        blocks = [free.pop() for _ in range(count)]
        tables[row, :count] = torch.tensor(blocks, dtype=torch.int32)
        places = [blocks[i // size] * size + i % size for i in range(context)]
        slots += places[: context - chunk]
        new_slots += places[context - chunk :] if context else [-1]
    cache[:, slots] = torch.randn(2, len(slots), *cache.shape[2:], generator=generator)
    tokens = len(new_slots)
    q, k, v = (
        torch.randn(tokens, heads, shape.head_dim, generator=generator).to(device, shape.dtype)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    k_cache, v_cache = cache.view(2, num_blocks, size, *cache.shape[2:]).to(device, shape.dtype)
    bounds = torch.tensor([0] + [chunk for _, chunk in prefills]).cumsum(0).to(torch.int32)
    metadata = AttentionMetadata(
        slot_mapping=torch.tensor(new_slots, dtype=torch.int64, device=device),
        num_prefill_tokens=int(bounds[-1]),
        cu_seqlens_q=bounds.to(device),
        prefill_context_lens=torch.tensor([c for c, _ in prefills], dtype=torch.int32, device=device),
        prefill_block_tables=tables[: len(prefills)].to(device),
        max_seqlen_q=max((n for _, n in prefills), default=0),
        max_prefill_context=max((c for c, _ in prefills), default=0),
        decode_context_lens=torch.tensor(decodes, dtype=torch.int32, device=device),
        decode_block_tables=tables[len(prefills) :].to(device),
        max_decode_context=max(decodes, default=0),
    )
    return Case(shape, q, k, v, k_cache.contiguous(), v_cache.contiguous(), metadata, prefills, decodes)


def naive_attention(case: Case, window: int = 0, sinks: Tensor | None = None) -> Tensor:
    """float32[T, heads, head_dim]: the step's attention, computed in float64 with loops on copies of the caches."""
    meta, size = case.metadata, case.shape.block_size
    k_cache, v_cache = (x.cpu().double().flatten(0, 1).clone() for x in (case.k_cache, case.v_cache))
    for token, slot in enumerate(meta.slot_mapping.tolist()):
        if slot >= 0:
            k_cache[slot], v_cache[slot] = case.k[token].cpu().double(), case.v[token].cpu().double()
    out = torch.zeros(case.q.shape, dtype=torch.float64)
    chunks = [chunk for _, chunk in case.prefills] + [1] * len(case.decodes)
    contexts = [context for context, _ in case.prefills] + case.decodes
    tables = meta.prefill_block_tables.tolist() + meta.decode_block_tables.tolist()
    token, group = 0, case.shape.heads // case.shape.kv_heads
    for context, chunk, table in zip(contexts, chunks, tables, strict=True):
        slots = [table[i // size] * size + i % size for i in range(context)]
        for place in range(context - chunk, max(context, context - chunk + 1)):
            seen = slots[max(0, place + 1 - window) if window else 0 : place + 1]
            for kv_head in range(case.shape.kv_heads if context else 0):
                heads = slice(kv_head * group, (kv_head + 1) * group)
                scores = case.q[token, heads].cpu().double() @ k_cache[seen, kv_head].T * case.scale
                weights = scores if sinks is None else torch.cat((scores, sinks[heads, None].cpu().double()), dim=1)
                out[token, heads] = weights.softmax(1)[:, : len(seen)] @ v_cache[seen, kv_head]
            token += 1
    assert token == case.q.shape[0]
    return out.float()


def in_float8(case: Case) -> tuple[Case, Tensor, Tensor]:
    """(the case with a float8 cache, its kv_scales, the expected attention over the quantised values); q is float32.

    Some keys and values exceed the largest number that their scale can represent.
    """
    kv_heads = case.shape.kv_heads
    scales = (1 + torch.arange(2 * kv_heads).view(2, kv_heads)) * 3.0 / 448 / kv_heads
    scales = scales.to(case.q.device)
    k_cache, v_cache = (quantize(x, scales[i]) for i, x in enumerate((case.k_cache, case.v_cache)))
    caches = [dequantize(x, scales[i], torch.float32) for i, x in enumerate((k_cache, v_cache))]
    k, v = (dequantize(quantize(x, scales[i]), scales[i], torch.float32) for i, x in enumerate((case.k, case.v)))
    expected = naive_attention(replace(case, k=k, v=v, k_cache=caches[0], v_cache=caches[1]))
    return replace(case, k_cache=k_cache, v_cache=v_cache), scales, expected


def in_integers(case: Case, dtype: torch.dtype) -> tuple[Case, Tensor]:
    """(the case with a cache of integers, the expected attention over the quantised values); q is float32.

    Unwritten slots hold a scale that is not a number.
    """
    k, v = (dequantize_integers(*quantize_integers(x, dtype), torch.float32) for x in (case.k, case.v))
    caches = [quantize_blocks(x.nan_to_num(0.0), dtype) for x in (case.k_cache, case.v_cache)]
    k_cache, v_cache = (dequantize_blocks(x, torch.float32) for x in caches)
    expected = naive_attention(replace(case, k=k, v=v, k_cache=k_cache, v_cache=v_cache))
    for cache in caches:
        for part in block_parts(cache):
            part.view(torch.uint8)[case.k_cache[..., 0].isnan()] = 0x7F
    return replace(case, k_cache=caches[0], v_cache=caches[1]), expected


def tolerance(dtype: torch.dtype) -> float:
    """Largest absolute error allowed for attention over standard normal values whose q, k and v have `dtype`."""
    return 2e-2 if dtype == torch.bfloat16 else 2e-5
