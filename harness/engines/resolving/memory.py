"""The memory of a configuration's servers in KV blocks: of the device, and of the tiers behind it."""

from __future__ import annotations

from typing import Any

from engine.core.offloading.rules import OffloadingRules
from engine.core.scheduler_options import OffloadOptions
from harness.config import RunConfig, SimEngine, TiersConfig
from harness.config.schema.fleet import NetworkConfig
from harness.errors import ConfigError
from simulator.copies.tiers import StoreTier, Tiers
from simulator.device import Device
from simulator.models.kv_pool import GIB, KVPool, kv_formula
from simulator.models.latent import Latent
from simulator.models.memory import DeviceTooSmallError, fill_kv_pool, size_kv_pool
from simulator.models.model import Model
from simulator.profile.graph_sizes import count_graphs
from simulator.quantities import MAX_BLOCKS
from simulator.versions.vllm_versions import VllmVersion, vllm_version


def kv_pool(
    config: RunConfig, model: Model, drafter: Model | None, device: Device, max_graph_tokens: int | None
) -> KVPool:
    """The KV pool of one rank: as configured, or what the device's memory leaves.

    Raises:
        ConfigError: the model does not fit on the device, or leaves more or fewer blocks than can be simulated.
    """
    model = model.largest_stage(config.pipeline_parallel_size)
    if config.num_blocks is not None:
        models = (model,) if drafter is None else (model, drafter)
        token_bytes = sum(each.kv_bytes_per_token(config.tensor_parallel_size) for each in models)
        size, has_drafter = config.block_size, drafter is not None
        return KVPool(config.num_blocks, size, size * token_bytes, has_drafter=has_drafter, formula=kv_formula(model))
    assert isinstance(config.engine, SimEngine), "the other engines are measured"
    limits: Any = {
        "block_size": config.block_size,
        "tensor_parallel_size": config.tensor_parallel_size,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "drafter": drafter,
        "shares_states": config.scheduler.eviction not in ("radix", "stored") and config.allocator.kind == "paged",
    }
    try:
        if config.kv_cache_memory_bytes is not None:
            pool = fill_kv_pool(model, device, config.kv_cache_memory_bytes, **limits)
        else:
            share = config.gpu_memory_utilization
            account = config.engine.memory_account or vllm_version(config.engine.vllm_version).memory_account
            limits["num_graphs"] = count_graphs(config.max_num_seqs, max_graph_tokens)
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


def resolve_tiers(
    config: TiersConfig, pool: KVPool, num_ranks: int, network: NetworkConfig, version: VllmVersion, model: Model
) -> Tiers:
    """The tiers for blocks of which each rank has a share as in `pool`, of the KV of `model`; `network` leads to the
    store, and `version` has the rules of tiers.rule=vllm.

    Raises:
        ConfigError: a tier has no room for a block, or for more than can be simulated.
    """
    block_bytes = pool.block_bytes * num_ranks
    offload = store = None
    if num_store_blocks := _num_blocks("tiers.store", config.store.gib, block_bytes):
        latency_ns, servers = round(network.latency_s * 1e9), config.store.servers
        store = StoreTier(num_store_blocks, network.bandwidth, latency_ns, servers, config.store.eviction)
    if config.offload and config.rule == "vllm":
        if pool.state_blocks:
            raise ConfigError("tiers.rule=vllm: states of sequences do not go to the host; use tiers.rule=evicted")
        if _is_on_host_once(model, version):
            block_bytes = pool.block_bytes
        offload = OffloadOptions(rules=OffloadingRules(config.chunk_blocks, **version.offloading))
    elif config.offload:
        offload = OffloadOptions(
            num_disk_blocks=_num_blocks("tiers.disk", config.disk.gib, block_bytes),
            num_store_blocks=num_store_blocks,
            overlap=config.overlap,
            host_eviction=config.host.eviction,
            disk_eviction=config.disk.eviction,
        )
    num_host_blocks = _num_blocks("tiers.host", config.host.gib, block_bytes)
    if offload is not None and offload.rules is not None and num_host_blocks < config.chunk_blocks:
        raise ConfigError(f"tiers.chunk_blocks={config.chunk_blocks}: tiers.host.gib has room for {num_host_blocks}")
    return Tiers(num_host_blocks, config.host.gb_per_s, config.disk.gb_per_s, store, offload)


def _is_on_host_once(model: Model, version: VllmVersion) -> bool:
    """Whether vLLM's host keeps one copy of KV that all ranks have, as they do of latents (`replicated_layout`)."""
    latents = [*model.of_kind(Latent)]
    since = (0, 33) if any(block.index_heads for _, block in latents) else (0, 27)
    others = model.kv_bytes_per_token(2) - sum(number * block.kv_bytes(model, 2) for number, block in latents)
    return version.since >= since and bool(latents) and not others


def _num_blocks(key: str, gib: float, block_bytes: int) -> int:
    num_blocks = int(gib * GIB) // block_bytes
    if gib and not num_blocks:
        raise ConfigError(f"{key}.gib={gib:g}: has no room for a KV block of {block_bytes / GIB:.3g} GiB")
    if num_blocks > MAX_BLOCKS:
        raise ConfigError(
            f"{key}.gib={gib:g}: has room for {num_blocks} KV blocks, at most {MAX_BLOCKS} are simulated; set less or "
            "a larger block_size"
        )
    return num_blocks
