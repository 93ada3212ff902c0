"""Write new keys and values into the paged cache.

A slot is `block_id * block_size + offset`: the row of one token in a cache seen as `[num_blocks * block_size, ...]`.
"""

from __future__ import annotations

from torch import Tensor

from kernels.runtime import Value, constexpr, next_power_of_2, runs_triton, tl, triton


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store row t of `k` and `v` in slot `slot_mapping[t]`, in place.

    k, v: [T, kv_heads, head_dim], last two dimensions contiguous; any dtype, cast to the cache's.
    k_cache, v_cache: [num_blocks, block_size, kv_heads, head_dim], contiguous.
    slot_mapping: int64[T], each slot at most once; -1 marks padding, whose row is stored nowhere.
    """
    if runs_triton(k):
        store_kv_triton(k, v, k_cache, v_cache, slot_mapping)
    else:
        store_kv_reference(k, v, k_cache, v_cache, slot_mapping)


def store_kv_reference(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """PyTorch version of `store_kv`; looks at the slots on the host, so it is for the CPU."""
    if slot_mapping.numel() == 0:
        return
    if int(slot_mapping.min()) < 0:
        kept = (slot_mapping >= 0).nonzero().squeeze(1)
        k, v, slot_mapping = k[kept], v[kept], slot_mapping[kept]
    for new, cache in ((k, k_cache), (v, v_cache)):
        rows = cache.view(-1, cache.shape[2], cache.shape[3])
        rows.index_copy_(0, slot_mapping, new.to(cache.dtype))


@triton.jit
def store_kv_kernel(
    k_ptr: Value,
    v_ptr: Value,
    k_cache_ptr: Value,
    v_cache_ptr: Value,
    slots_ptr: Value,
    k_stride: Value,
    v_stride: Value,
    width: constexpr,
    block: constexpr,
) -> None:
    """One program per token: its `width` = kv_heads * head_dim elements of k and of v."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        offsets = tl.arange(0, block)
        mask = offsets < width
        k = tl.load(k_ptr + token * k_stride + offsets, mask=mask)
        v = tl.load(v_ptr + token * v_stride + offsets, mask=mask)
        tl.store(k_cache_ptr + slot * width + offsets, k.to(k_cache_ptr.dtype.element_ty), mask=mask)
        tl.store(v_cache_ptr + slot * width + offsets, v.to(v_cache_ptr.dtype.element_ty), mask=mask)


def store_kv_triton(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Triton version of `store_kv`."""
    if slot_mapping.shape[0] == 0:
        return
    width = k.shape[1] * k.shape[2]
    block = next_power_of_2(width)
    grid = (slot_mapping.shape[0],)
    strides = (k.stride(0), v.stride(0))
    warps = 1 if block <= 512 else 4
    store_kv_kernel[grid](k, v, k_cache, v_cache, slot_mapping, *strides, width=width, block=block, num_warps=warps)
