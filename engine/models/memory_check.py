"""Refuses a model whose weights cannot fit into memory, before any of them is allocated."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine.models.model_config import ModelConfig, ModelError

_GIB = 1 << 30


def check_memory(config: ModelConfig, num_ranks: int, dtype: torch.dtype, device: torch.device) -> None:
    """Raise ModelError if one rank's share does not fit on its GPU, or the shares of all ranks into the main memory,
    where float8 weights are kept in `dtype` (see `engine.models.weights.dequantize_for_cpu`)."""
    needed = rank_bytes(config if device.type == "cuda" else replace(config, fp8=None), num_ranks, dtype)
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        needed, free = needed * num_ranks, free_main_memory()
    if needed > free:
        place = f"memory ({device.type})"
        raise ModelError(f"the weights take {needed / _GIB:,.1f} GiB of {place}, {free / _GIB:,.1f} GiB are free")


def rank_bytes(config: ModelConfig, num_ranks: int, dtype: torch.dtype) -> int:
    """Bytes of one rank's matrices, scales included, and of the rotary table; norms and biases do not count."""

    def size(rows: int, columns: int) -> int:
        if config.fp8 is None:
            return rows * columns * dtype.itemsize
        height, width = config.fp8.matrix_block(max(1, columns))  # a dense model has experts of width 0
        return rows * columns + -(-rows // height) * -(-columns // width) * torch.float32.itemsize

    hidden, heads = config.hidden_size, config.num_attention_heads // num_ranks
    qkv_heads = heads + 2 * max(1, config.num_kv_heads // num_ranks)
    attention = size(qkv_heads * config.head_dim, hidden) + size(hidden, heads * config.head_dim)
    if (latent := config.latent) is not None:
        queries, inner = heads * config.head_dim, latent.q_lora_rank
        attention = size(inner, hidden) + size(queries, inner) if inner else size(queries, hidden)
        attention += size(latent.width, hidden) + size(hidden, heads * latent.v_head_dim)
        attention += size(heads * (latent.qk_nope_head_dim + latent.v_head_dim), latent.kv_lora_rank)
    dense, expert = (
        size(2 * width // num_ranks, hidden) + size(hidden, width // num_ranks)
        for width in (config.intermediate_size, config.moe_intermediate_size)
    )
    experts = (config.num_experts + config.num_shared_experts) * expert
    experts += config.num_experts * hidden * dtype.itemsize
    num_sparse = sum(config.has_experts(layer) for layer in range(config.num_layers))
    layers = config.num_layers * attention + num_sparse * experts + (config.num_layers - num_sparse) * dense
    vocabulary = -(-config.vocab_size // num_ranks) * hidden * (1 if config.tie_word_embeddings else 2)
    rotary = config.max_position_embeddings * config.rope_dim * torch.float32.itemsize
    return layers + vocabulary * dtype.itemsize + rotary


def free_main_memory() -> int:
    """Bytes that can be allocated without swapping, cached files included, as Linux estimates them."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    raise ModelError("/proc/meminfo: has no MemAvailable")
