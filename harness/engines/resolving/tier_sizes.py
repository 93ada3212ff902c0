"""The memories behind the device's, in blocks instead of GiB."""

from __future__ import annotations

from engine.core.offloading.rules import OffloadingRules
from engine.core.scheduler_options import OffloadOptions
from harness.config import TiersConfig
from harness.config.schema.fleet import NetworkConfig
from harness.errors import ConfigError
from simulator.models.kv_pool import GIB, KVPool
from simulator.quantities import MAX_BLOCKS
from simulator.tiers import StoreTier, Tiers
from simulator.versions.vllm_versions import VllmVersion


def resolve_tiers(
    config: TiersConfig, pool: KVPool, num_ranks: int, network: NetworkConfig, version: VllmVersion
) -> Tiers:
    """The tiers for blocks of which each rank has a share as in `pool`; `network` leads to the store, and `version` has
    the rules of tiers.rule=vllm.

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
