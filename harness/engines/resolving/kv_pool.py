"""The KV pool of a configuration."""

from __future__ import annotations

from typing import Any

from harness.config import RunConfig, SimEngine
from harness.config.schema.system import HIGH_THROUGHPUT
from harness.engines.resolving.shapes import contiguous_rule
from harness.errors import ConfigError
from simulator.models.hardware import Device
from simulator.models.kv_pool import KVPool, kv_formula
from simulator.models.memory import DeviceTooSmallError, fill_kv_pool, size_kv_pool
from simulator.models.model import Model
from simulator.profile.graph_sizes import count_graphs
from simulator.quantities import MAX_BLOCKS
from simulator.versions.vllm_versions import vllm_version


def kv_pool(config: RunConfig, model: Model, drafter: Model | None, device: Device) -> KVPool:
    """The KV pool of one rank: as configured, or what the device's memory leaves."""
    if config.num_blocks is not None:
        block_bytes = config.block_size * model.kv_bytes_per_token(config.tensor_parallel_size)
        if drafter is not None:
            block_bytes += config.block_size * drafter.kv_bytes_per_token(config.tensor_parallel_size)
        return KVPool(
            config.num_blocks,
            config.block_size,
            block_bytes,
            has_drafter=drafter is not None,
            formula=kv_formula(model),
        )
    assert isinstance(config.engine, SimEngine), "the other engines are measured"
    limits: Any = {
        "block_size": config.block_size,
        "tensor_parallel_size": config.tensor_parallel_size,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "drafter": drafter,
        "shares_states": config.scheduler.eviction not in ("radix", "stored") and contiguous_rule(config) is None,
    }
    try:
        if config.kv_cache_memory_bytes is not None:
            pool = fill_kv_pool(model, device, config.kv_cache_memory_bytes, **limits)
        else:
            share = config.gpu_memory_utilization
            account = config.engine.memory_account or vllm_version(config.engine.vllm_version).memory_account
            limits["num_graphs"] = count_graphs(config.max_num_seqs, graph_tokens(config))
            pool = size_kv_pool(model, device, gpu_memory_utilization=share, memory_account=account, **limits)
    except DeviceTooSmallError as error:
        given = config.kv_cache_memory_bytes
        key = f"device={config.device.name}" if given is None else f"kv_cache_memory_bytes={given}"
        raise ConfigError(f"{key}: {error}") from error
    if pool.num_blocks > MAX_BLOCKS:
        raise ConfigError(
            f"block_size={config.block_size}: device={config.device.name} has memory for {pool.num_blocks} KV blocks, "
            f"at most {MAX_BLOCKS} are simulated; give num_blocks or a larger block_size"
        )
    if pool.num_blocks <= config.scheduler.reserved_blocks:
        raise ConfigError(
            f"scheduler.reserved_blocks={config.scheduler.reserved_blocks}: must be < {pool.num_blocks}, the KV blocks "
            f"for which device={config.device.name} has memory"
        )
    return pool


def graph_tokens(config: RunConfig) -> int | None:
    """`engine.max_graph_tokens`; 0 with DeepEP's kernels of high throughput, with which vLLM runs no CUDA graphs
    (`cudagraph_mode` in its config/compilation.py)."""
    assert isinstance(config.engine, SimEngine)
    is_eager = config.data_parallel_size > 1 and config.engine.all2all_backend == HIGH_THROUGHPUT
    return 0 if is_eager else config.engine.max_graph_tokens
