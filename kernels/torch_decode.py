"""Decode attention in PyTorch: the reference of the Triton kernel, and what runs on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

MAX_TILE_BYTES = 4 << 20
MAX_PADDING = 1.25


class Scratch:
    """Reused buffers, one per name and dtype, grown geometrically."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def get(self, name: str, num_elements: int, like: Tensor) -> Tensor:
        """An uninitialised flat buffer of `num_elements` of `like`'s dtype and device, valid until the next call."""
        key = (name, like.dtype, like.device)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < num_elements:
            size = max(num_elements, 2 * buffer.numel() if buffer is not None else 0)
            buffer = self._buffers[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return buffer[:num_elements]


@dataclass(frozen=True)
class DecodeGroup:
    """Sequences of similar context, gathered and attended to together."""

    rows: Tensor
    """int64[n]: which rows of the batch."""
    slots: Tensor
    """int64[n * length]: the slots of their contexts, those past the end of a context repeating its first."""
    length: int
    """Their longest context."""
    mask: Tensor | None
    """bool[n, 1, 1, length]: what is context, or None where all is."""


@dataclass(frozen=True)
class DecodePlan:
    """How to attend over one step's contexts: groups of rows, and the padded rows whose output is zeros."""

    groups: list[DecodeGroup]
    padded_rows: Tensor


def plan_decode(context_lens: Tensor, block_tables: Tensor, k_cache: Tensor) -> DecodePlan:
    """Group the rows of a batch by context.

    A group's gathered keys are at most MAX_TILE_BYTES, to stay in the processor's cache between gather and use, and
    are at most MAX_PADDING times what its contexts hold.
    """
    block_size = k_cache.shape[1]
    row_bytes = k_cache.shape[2] * k_cache.shape[3] * k_cache.element_size()
    ordered, order = context_lens.sort(descending=True)
    lens = ordered.tolist()
    groups = []
    start = 0
    while start < len(lens) and lens[start] > 0:
        end, total, length = start + 1, lens[start], lens[start]
        while end < len(lens) and lens[end] > 0:
            padded = (end + 1 - start) * length
            if padded * row_bytes > MAX_TILE_BYTES or padded > MAX_PADDING * (total + lens[end]):
                break
            total += lens[end]
            end += 1
        groups.append(_plan_group(order[start:end], ordered[start:end], length, total, block_tables, block_size))
        start = end
    return DecodePlan(groups, order[start:])


def _plan_group(
    rows: Tensor, lens: Tensor, length: int, total: int, block_tables: Tensor, block_size: int
) -> DecodeGroup:
    positions = torch.arange(length, device=rows.device)
    inside = positions < lens.unsqueeze(1)
    blocks = block_tables[rows, : -(-length // block_size)].long()
    slots = blocks.index_select(1, positions // block_size).mul_(block_size).add_(positions % block_size)
    slots = torch.where(inside, slots, slots[:, :1])
    mask = None if total == length * rows.shape[0] else inside[:, None, None, :]
    return DecodeGroup(rows, slots.flatten(), length, mask)


def torch_decode_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: DecodePlan, scale: float, out: Tensor, scratch: Scratch
) -> None:
    """Attention of q [B, heads, head_dim] over the contexts of `plan`, into out [B, heads, head_dim]."""
    kv_heads, head_dim = k_cache.shape[2:]
    k_rows, v_rows = k_cache.view(-1, kv_heads * head_dim), v_cache.view(-1, kv_heads * head_dim)
    for group in plan.groups:
        count = group.rows.shape[0]
        size = group.slots.shape[0] * k_rows.shape[1]
        k = scratch.get("k", size, k_cache).view(-1, k_rows.shape[1])
        v = scratch.get("v", size, v_cache).view(-1, v_rows.shape[1])
        torch.index_select(k_rows, 0, group.slots, out=k)
        torch.index_select(v_rows, 0, group.slots, out=v)
        queries = q.index_select(0, group.rows).view(count, kv_heads, -1, head_dim)
        attended = functional.scaled_dot_product_attention(
            queries,
            k.view(count, group.length, kv_heads, head_dim).transpose(1, 2),
            v.view(count, group.length, kv_heads, head_dim).transpose(1, 2),
            attn_mask=group.mask,
            scale=scale,
        )
        out.index_copy_(0, group.rows, attended.reshape(count, -1, head_dim))
    if plan.padded_rows.shape[0]:
        out.index_fill_(0, plan.padded_rows, 0.0)
