"""Decode attention in PyTorch: it runs on the CPU, and is the reference of the Triton kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cache.kv_integers import LARGEST
from kernels.cache.kv_store import read_blocks
from kernels.cache.layer_kv import LayerKV
from kernels.runtime import ceil_div

MAX_TILE_BYTES = 3 << 20
MAX_PADDING = 1.25
MAX_PIECE_TOKENS = 16


class Scratch:
    """Reused buffers, one per name, dtype and device; a buffer that is too small at least doubles."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def get(self, name: str, num_elements: int, like: Tensor) -> Tensor:
        """Uninitialised buffer [num_elements] with `like`'s dtype and device, valid until the next call for `name`."""
        key = (name, like.dtype, like.device)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < num_elements:
            size = max(num_elements, 2 * buffer.numel() if buffer is not None else 0)
            buffer = self._buffers[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return buffer[:num_elements]


@dataclass(frozen=True)
class DecodeGroup:
    """Sequences with contexts of similar length: their keys and values are gathered into one tensor for one call.

    The unit of gathering is a piece: a block or, but for integers, an equal part of one. Every context is padded to the
    longest of the group.
    """

    rows: Tensor
    """int64[n]: the sequences' rows in the batch."""
    pieces: Tensor
    """int64[n * length / piece_tokens]: the pieces of each context, padded with the context's first piece."""
    length: int
    """Tokens gathered for each sequence."""
    mask: Tensor | None
    """[n, 1, 1, length] of the queries' dtype: 0 for tokens that are seen, -inf before the window and in the padding;
    None where all are seen."""
    stale: Tensor
    """int64[m]: gathered tokens that no step has written, so that they may hold anything, NaN included."""


@dataclass(frozen=True)
class DecodePlan:
    """How to attend over one step's contexts: groups of rows, and the padded rows, whose output is zeros."""

    groups: list[DecodeGroup]
    padded_rows: Tensor
    piece_tokens: int


def plan_decode(
    context_lens: Tensor,
    block_tables: Tensor,
    k_cache: Tensor,
    dtype: torch.dtype | None = None,
    window: int = 0,
) -> DecodePlan:
    """Group the rows of a batch by the length of their contexts.

    context_lens: int32[B], 0 marks a padded row; block_tables: int32[B, max_blocks].
    dtype: of the queries, hence of the masks; by default the dtype of the cache.
    window: the last tokens of a context that are seen, 0 for all; blocks before them are not gathered.

    The gathered keys of a group are at most MAX_TILE_BYTES, so that they are still in the processor's cache when they
    are used; only a group of one sequence may be larger. A group gathers about MAX_PADDING times the tokens of its
    contexts at most.
    """
    block_size = k_cache.shape[1]
    longest = block_size if k_cache.dtype in LARGEST else min(block_size, MAX_PIECE_TOKENS)
    piece_tokens = max(n for n in range(1, longest + 1) if block_size % n == 0)
    hidden = torch.zeros_like(context_lens)
    if window:
        context_lens, block_tables, hidden = _in_window(context_lens, block_tables, block_size, window)
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
        blocks = block_tables[order[start:end], : ceil_div(length, block_size)].long()
        pieces_per_block = block_size // piece_tokens
        group = _plan_group(
            order[start:end], ordered[start:end], hidden[order[start:end]], length, blocks, piece_tokens,
            pieces_per_block, dtype or k_cache.dtype,
        )  # fmt: skip
        groups.append(group)
        start = end
    return DecodePlan(groups, order[start:], piece_tokens)


def _in_window(
    context_lens: Tensor, block_tables: Tensor, block_size: int, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The contexts without the blocks before their windows, and how many tokens are before the window in what is left:
    (context_lens, block_tables, hidden)."""
    before = (context_lens - window).clamp(min=0)
    skipped = before // block_size
    columns = torch.arange(block_tables.shape[1], device=block_tables.device) + skipped.unsqueeze(1)
    tables = block_tables.gather(1, columns.clamp(max=block_tables.shape[1] - 1).long())
    return context_lens - skipped * block_size, tables, before - skipped * block_size


def _plan_group(
    rows: Tensor,
    lens: Tensor,
    hidden: Tensor,
    longest: int,
    blocks: Tensor,
    piece_tokens: int,
    pieces_per_block: int,
    dtype: torch.dtype,
) -> DecodeGroup:
    piece = torch.arange(ceil_div(longest, piece_tokens), device=rows.device)
    last_piece = ((lens - 1) // piece_tokens).unsqueeze(1)
    pieces = blocks.index_select(1, piece // pieces_per_block).mul_(pieces_per_block).add_(piece % pieces_per_block)
    pieces = torch.where(piece <= last_piece, pieces, pieces[:, :1])
    length = piece.shape[0] * piece_tokens
    outside = torch.arange(length, device=rows.device) >= lens.unsqueeze(1)
    # Only the last piece of a context may have unwritten tokens. If the context has one piece, this piece is also the
    # padding, so its unwritten tokens are gathered several times.
    partial = ((piece == last_piece) | (last_piece == 0)).repeat_interleave(piece_tokens, dim=1)
    stale = (outside & partial).flatten().nonzero().squeeze(1)
    mask = None
    if int(lens[-1]) < length or bool(hidden.any()):
        unseen = outside | (torch.arange(length, device=rows.device) < hidden.unsqueeze(1))
        zeros = torch.zeros(outside.shape, dtype=dtype, device=rows.device)
        mask = zeros.masked_fill_(unseen, -torch.inf)[:, None, None, :]
    return DecodeGroup(rows, pieces.flatten(), length, mask, stale)


def torch_decode_attention(
    q: Tensor, kv: LayerKV, plan: DecodePlan, scale: float, out: Tensor, scratch: Scratch, sinks: Tensor | None = None
) -> None:
    """Attention of q [B, heads, head_dim] over the contexts of `plan`, written to out [B, heads, width of a value]."""
    for group in plan.groups:
        count, kv_heads, head_dim = group.rows.shape[0], kv.keys.shape[2], q.shape[2]
        scales = (None, None) if kv.scales is None else kv.scales
        keys = _gather("k", kv.keys, group, plan.piece_tokens, scratch, scales[0], q.dtype)
        values = keys
        if not kv.is_latent:
            values = _gather("v", kv.values, group, plan.piece_tokens, scratch, scales[1], q.dtype)
        attended = attend(
            q.index_select(0, group.rows).view(count, kv_heads, -1, head_dim),
            keys,
            values,
            group.mask,
            scale,
            None if sinks is None else sinks.view(kv_heads, -1),
        )
        out.index_copy_(0, group.rows, attended.reshape(count, -1, head_dim)[..., : out.shape[2]])
    if plan.padded_rows.shape[0]:
        out.index_fill_(0, plan.padded_rows, 0.0)


def _gather(
    name: str,
    cache: Tensor,
    group: DecodeGroup,
    piece_tokens: int,
    scratch: Scratch,
    scales: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """A group's keys or values, [n, kv_heads, length, head_dim]: a view of a scratch buffer, new if dequantised."""
    kv_heads, row_width = cache.shape[2:]
    pieces = cache.view(-1, piece_tokens * kv_heads * row_width)
    buffer = scratch.get(name, group.pieces.shape[0] * pieces.shape[1], cache)
    torch.index_select(pieces, 0, group.pieces, out=buffer.view(-1, pieces.shape[1]))
    gathered = read_blocks(buffer.view(-1, piece_tokens, kv_heads, row_width), scales, dtype)
    gathered.view(-1, *gathered.shape[2:]).index_fill_(0, group.stale, 0.0)
    return gathered.view(-1, group.length, kv_heads, gathered.shape[3]).transpose(1, 2)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    sinks: Tensor | None,
    is_causal: bool = False,
) -> Tensor:
    """PyTorch's `scaled_dot_product_attention`, with sinks, of q [..., n, d] over k and v [..., c, d]; all but the last
    two dimensions of k, v and mask [..., n, c] are repeated where they are 1.

    sinks: broadcast to [..., n]: see AttentionBackend. `is_causal` goes without sinks.
    """
    width = q.shape[-1]
    if sinks is not None:
        # The sink is the score of one more key, (0, ..., 0, 1), with queries (q, sink / scale) of one more element.
        last = (sinks / scale).to(q.dtype).unsqueeze(-1).expand(*q.shape[:-1], 1)
        q, k, v = torch.cat((q, last), -1), functional.pad(k, (0, 1, 0, 1)), functional.pad(v, (0, 1, 0, 1))
        k[..., -1, -1] = 1.0
        mask = mask if mask is None else functional.pad(mask, (0, 1), value=mask.dtype == torch.bool)
    k, v = (each.expand(*q.shape[:-2], *each.shape[-2:]) for each in (k, v))
    attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale)
    return attended[..., :width]
