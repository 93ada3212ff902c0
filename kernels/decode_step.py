"""The parts of a decode step before and after the model.

`begin_decode` computes each row's position, slot and context; `end_decode` stores the sampled tokens. Rows of length 0
are padding: their keys and values are not stored, their attention output is zeros, and `end_decode` does not change
them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.launch import Launcher
from kernels.runtime import Value, ceil_div, constexpr, next_power_of_2, runs_triton, tl, triton

_BLOCK = 128


def begin_decode(lengths: Tensor, block_tables: Tensor, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(positions int64[B], slots int64[B], contexts int32[B]) of each row's last token, the one to compute.

    lengths: int64[B], known tokens; block_tables: int32[B, max_blocks], any row stride. A padded row gets position 0,
    slot -1 and context 0.
    """
    if runs_triton(lengths):
        return begin_decode_triton(lengths, block_tables, block_size)
    return begin_decode_reference(lengths, block_tables, block_size)


def end_decode(sampled: Tensor, tokens: Tensor, lengths: Tensor, ring: Tensor, cursor: Tensor) -> None:
    """Store the sampled tokens in `tokens` and in row `cursor` of the ring; add 1 to the lengths and to the cursor.

    sampled, tokens, lengths: int64[B]; ring: int64[steps, >= B]; cursor: int64[1]. All but `sampled` are written in
    place. Padded rows do not change in `tokens`, `lengths` and the ring.
    """
    if runs_triton(sampled):
        end_decode_triton(sampled, tokens, lengths, ring, cursor)
    else:
        end_decode_reference(sampled, tokens, lengths, ring, cursor)


def begin_decode_reference(lengths: Tensor, block_tables: Tensor, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """PyTorch version of `begin_decode`."""
    positions = (lengths - 1).clamp_(min=0)
    blocks = block_tables.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1)
    slots = blocks.long() * block_size + positions % block_size
    return positions, slots.masked_fill_(lengths == 0, -1), lengths.to(torch.int32)


def end_decode_reference(sampled: Tensor, tokens: Tensor, lengths: Tensor, ring: Tensor, cursor: Tensor) -> None:
    """PyTorch version of `end_decode`."""
    live, entries = lengths > 0, ring[:, : sampled.shape[0]]
    tokens.copy_(torch.where(live, sampled, tokens))
    entry = torch.where(live, sampled, entries.index_select(0, cursor))
    entries.index_copy_(0, cursor, entry)
    lengths.add_(live)
    cursor.add_(1)


@triton.jit(do_not_specialize=["num_rows", "table_stride"])
def begin_decode_kernel(
    lengths_ptr: Value,
    tables_ptr: Value,
    positions_ptr: Value,
    slots_ptr: Value,
    contexts_ptr: Value,
    num_rows: Value,
    table_stride: Value,
    block_size: constexpr,
    block: constexpr,
) -> None:
    """One program handles `block` rows."""
    rows = tl.program_id(0) * block + tl.arange(0, block)
    mask = rows < num_rows
    length = tl.load(lengths_ptr + rows, mask=mask, other=0)
    live = length > 0
    position = tl.where(live, length - 1, 0)
    entries = rows.to(tl.int64) * table_stride + position // block_size
    blocks = tl.load(tables_ptr + entries, mask=live, other=0).to(tl.int64)
    slot = tl.where(live, blocks * block_size + position % block_size, -1)
    tl.store(positions_ptr + rows, position, mask=mask)
    tl.store(slots_ptr + rows, slot, mask=mask)
    tl.store(contexts_ptr + rows, length.to(tl.int32), mask=mask)


launch_begin_decode = Launcher(begin_decode_kernel)


# The samples of decodes follow those of prompts, so they begin at any multiple of 8 bytes.
@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["sampled_ptr"])
def end_decode_kernel(
    sampled_ptr: Value,
    tokens_ptr: Value,
    lengths_ptr: Value,
    ring_ptr: Value,
    cursor_ptr: Value,
    num_rows: Value,
    ring_stride: Value,
    block: constexpr,
) -> None:
    """One program handles `block` rows."""
    rows = tl.program_id(0) * block + tl.arange(0, block)
    mask = rows < num_rows
    length = tl.load(lengths_ptr + rows, mask=mask, other=0)
    live = length > 0
    token = tl.load(sampled_ptr + rows, mask=mask, other=0)
    entry_ptr = ring_ptr + tl.load(cursor_ptr) * ring_stride
    tl.store(tokens_ptr + rows, token, mask=live)
    tl.store(entry_ptr + rows, token, mask=live)
    tl.store(lengths_ptr + rows, length + 1, mask=live)


launch_end_decode = Launcher(end_decode_kernel)


def begin_decode_triton(lengths: Tensor, block_tables: Tensor, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Triton version of `begin_decode`."""
    num_rows = lengths.shape[0]
    positions, slots = (torch.empty(num_rows, dtype=torch.int64, device=lengths.device) for _ in range(2))
    contexts = torch.empty(num_rows, dtype=torch.int32, device=lengths.device)
    if num_rows == 0:
        return positions, slots, contexts
    block = min(next_power_of_2(num_rows), _BLOCK)
    launch_begin_decode(
        (ceil_div(num_rows, block),),
        lengths,
        block_tables,
        positions,
        slots,
        contexts,
        num_rows,
        block_tables.stride(0),
        block_size=block_size,
        block=block,
        num_warps=4,
    )
    return positions, slots, contexts


def end_decode_triton(sampled: Tensor, tokens: Tensor, lengths: Tensor, ring: Tensor, cursor: Tensor) -> None:
    """Triton version of `end_decode`."""
    num_rows = sampled.shape[0]
    if num_rows == 0:
        return
    block = min(next_power_of_2(num_rows), _BLOCK)
    launch_end_decode(
        (ceil_div(num_rows, block),),
        sampled,
        tokens,
        lengths,
        ring,
        cursor,
        num_rows,
        ring.stride(0),
        block=block,
        num_warps=4,
    )
    cursor.add_(1)  # not in the kernel, where every program reads the cursor
