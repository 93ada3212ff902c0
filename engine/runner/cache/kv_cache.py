"""The paged KV cache: one tensor for all layers, sized from the memory that the largest step leaves free."""

from __future__ import annotations

import contextlib
import math
import mmap
import os

import torch
from torch import Tensor

from engine.engine_config import EngineConfig
from engine.models.blocks import CausalLM
from engine.models.model_config import ModelConfig, ModelError
from kernels.attention.backends import AttentionMetadata
from kernels.cache.kv_integers import INT4_DTYPE, INT8_DTYPE, row_width
from kernels.cache.kv_store import FP8_DTYPE
from kernels.sampling.sampler import sample

GIB = 1 << 30


class OutOfMemoryError(RuntimeError):
    """No KV block fits beside the model; the message is one line with the sizes."""


def cache_dtype(config: EngineConfig, model: ModelConfig) -> torch.dtype:
    """Dtype of the cached keys and values.

    Raises:
        ModelError: the model has latent attention, whose cache is in the model's dtype only.
    """
    if model.latent is not None and config.kv_cache_dtype != "auto":
        raise ModelError(f"kv_cache_dtype={config.kv_cache_dtype}: not supported for latent attention")
    dtype: torch.dtype = getattr(torch, config.dtype or model.dtype)
    return {"auto": dtype, "fp8": FP8_DTYPE, "int8": INT8_DTYPE, "int4": INT4_DTYPE}[config.kv_cache_dtype]


def block_bytes(model: ModelConfig, block_size: int, tensor_parallel_size: int, dtype: torch.dtype) -> int:
    """Bytes of one KV block on one rank."""
    return math.prod(cache_shape(model, 1, block_size, tensor_parallel_size, dtype)) * dtype.itemsize


def cache_shape(
    model: ModelConfig, num_blocks: int, block_size: int, tensor_parallel_size: int, dtype: torch.dtype
) -> tuple[int, ...]:
    """[layers, 2, num_blocks, block_size, kv_heads/TP, row width], kv_heads/TP at least 1.

    The row width is head_dim, but for integers (`kernels.cache.kv_integers`). Of latent attention, keys and values are
    one: [layers, 1, num_blocks, block_size, 1, width of a latent], on every rank.
    """
    if model.latent is not None:
        return model.num_layers, 1, num_blocks, block_size, 1, model.latent.width
    kv_heads = max(1, model.num_kv_heads // tensor_parallel_size)
    return model.num_layers, 2, num_blocks, block_size, kv_heads, row_width(model.head_dim, dtype)


def num_host_blocks(config: EngineConfig, model: ModelConfig) -> int:
    """How many KV blocks, each with the shares of all ranks, host memory is to hold.

    Raises:
        OutOfMemoryError: not one fits into `host_kv_gib`, or there is less memory than that.
    """
    if not config.host_kv_gib:
        return 0
    ranks = config.tensor_parallel_size
    each = ranks * block_bytes(model, config.block_size, ranks, cache_dtype(config, model))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = int(config.host_kv_gib * GIB)
    if size < each or size > free:
        lack = f"one takes {each / GIB:.3g} GiB" if size < each else f"{free / GIB:.3g} GiB are free"
        raise OutOfMemoryError(f"{config.host_kv_gib:g} GiB of host memory for KV blocks: {lack}")
    return size // each


def allocate(
    model: ModelConfig,
    num_blocks: int,
    block_size: int,
    tensor_parallel_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """A zeroed cache."""
    shape = cache_shape(model, num_blocks, block_size, tensor_parallel_size, dtype)
    if device.type == "cpu" and hasattr(mmap, "MADV_HUGEPAGE"):
        return _on_huge_pages(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
    return torch.zeros(shape, dtype=dtype, device=device)


def _on_huge_pages(num_bytes: int) -> Tensor:
    """uint8[num_bytes], zeroed, on huge pages where the system has them.

    The blocks of one context are spread over the whole cache; huge pages cause fewer misses in the processor's TLB.
    """
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).zero_()  # writing zeros allocates the pages now, not in a step


def fitting_blocks(
    model: CausalLM,
    config: EngineConfig,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
    graph_bytes: int = 0,
) -> int:
    """How many KV blocks fit on this rank.

    On CUDA the cache gets, in bytes:

        gpu_memory_utilization * total - in use - peak of the largest step - graph_bytes

    The largest step is run to measure its peak, which includes logits and sampling of `max_num_seqs` decodes;
    `graph_bytes` is what the CUDA graphs will take. On the CPU the cache gets gpu_memory_utilization * free memory, but
    no more blocks than `max_num_seqs` sequences of `max_model_len` tokens can use.

    Raises:
        OutOfMemoryError: not one block fits besides those that are reserved.
    """
    each = block_bytes(model.config, config.block_size, config.tensor_parallel_size, dtype)
    if device.type == "cuda":
        free = _free_cuda_bytes(model, config, max_model_len, device) - graph_bytes
        num_blocks = free // each
    else:
        free = int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * config.gpu_memory_utilization)
        num_blocks = min(free // each, config.max_num_seqs * -(-max_model_len // config.block_size))
    if num_blocks < 1:
        raise OutOfMemoryError(
            f"no KV block of {each / GIB:.3f} GiB fits in the {free / GIB:.2f} GiB that model, activations and CUDA "
            f"graphs leave of gpu_memory_utilization={config.gpu_memory_utilization}"
        )
    if num_blocks <= config.reserved_blocks:
        raise OutOfMemoryError(
            f"reserved_blocks={config.reserved_blocks}: must be < {num_blocks}, the KV blocks for which there is memory"
        )
    return num_blocks


def _free_cuda_bytes(model: CausalLM, config: EngineConfig, max_model_len: int, device: torch.device) -> int:
    """Bytes that `gpu_memory_utilization` leaves beside what is in use and the peak of the largest step."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    _largest_pass(model, config, max_model_len, device)
    torch.cuda.empty_cache()  # `peak - current` counts the activations, so they must not be in use as well
    free, total = torch.cuda.mem_get_info(device)
    stats = torch.cuda.memory_stats(device)
    peak, current = stats["allocated_bytes.all.peak"], stats["allocated_bytes.all.current"]
    return int(total * config.gpu_memory_utilization - (total - free) - (peak - current))


@torch.inference_mode()
def _largest_pass(model: CausalLM, config: EngineConfig, max_model_len: int, device: torch.device) -> None:
    """Run a step of prompts with `max_num_batched_tokens` tokens, and sample all tokens of `max_num_seqs` decodes, with
    top-k and top-p.

    The cache has one block, and all keys and values go to its first slot.
    """
    total = config.max_num_batched_tokens
    length = min(total, max_model_len)
    lengths = [length] * (total // length) + ([total % length] if total % length else [])
    dtype = cache_dtype(config, model.config)
    cache = allocate(model.config, 1, config.block_size, config.tensor_parallel_size, dtype, device)
    empty = torch.zeros(0, dtype=torch.int32, device=device)
    metadata = AttentionMetadata(
        slot_mapping=torch.zeros(total, dtype=torch.int64, device=device),
        num_prefill_tokens=total,
        cu_seqlens_q=torch.tensor([0, *lengths], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32),
        prefill_context_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        prefill_block_tables=torch.zeros(
            len(lengths), -(-length // config.block_size), dtype=torch.int32, device=device
        ),
        max_seqlen_q=length,
        max_prefill_context=length,
        decode_context_lens=empty,
        decode_block_tables=empty.reshape(0, 0),
        max_decode_context=0,
        begins_prompts=True,
    )
    ids = torch.zeros(total, dtype=torch.int64, device=device)
    positions = torch.cat([torch.arange(n, device=device) for n in lengths])
    hidden = model(ids, positions, cache, metadata)
    num_sampled = config.max_num_seqs * config.tokens_per_decode
    rows = torch.zeros(num_sampled, dtype=torch.int64, device=device)
    ones = torch.ones(num_sampled, device=device)
    sample(model.compute_logits(hidden[rows]), ones, rows.to(torch.int32), ones, rows, rows)
    torch.cuda.synchronize(device)
