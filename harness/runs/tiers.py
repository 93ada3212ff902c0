"""The memories behind the device's, in blocks and rates instead of GiB and GB/s."""

from __future__ import annotations

from engine.core.scheduler_options import OffloadOptions
from harness.config import TiersConfig
from harness.errors import ConfigError
from simulator.memory import GIB, KVPool
from simulator.quantities import MAX_BLOCKS
from simulator.transfers import Link, TierLinks


def num_host_blocks(tiers: TiersConfig, pool: KVPool, num_ranks: int) -> int:
    """KV blocks, each with the shares of all ranks, that host memory has room for.

    Raises:
        ConfigError: not one fits, or more than can be simulated.
    """
    return _num_blocks("tiers.host", tiers.host.gib, pool.block_bytes * num_ranks)


def offload_options(tiers: TiersConfig, pool: KVPool, num_ranks: int) -> OffloadOptions | None:
    """What the core must know of the tiers behind the prefix cache; None if blocks do not go there.

    Raises:
        ConfigError: as `num_host_blocks`, for the disk.
    """
    if not tiers.offload:
        return None
    return OffloadOptions(
        num_disk_blocks=_num_blocks("tiers.disk", tiers.disk.gib, pool.block_bytes * num_ranks),
        overlap=tiers.overlap,
        host_eviction=tiers.host.eviction,
        disk_eviction=tiers.disk.eviction,
    )


def transfer_block_us(tiers: TiersConfig, pool: KVPool) -> float:
    """Microseconds that a block takes to the host or back."""
    return pool.block_bytes / (tiers.host.gb_per_s * 1e3)


def tier_links(tiers: TiersConfig, pool: KVPool, num_ranks: int) -> TierLinks:
    """The link of one device to its host, which the device's share of each block takes, and the disk's, for all."""
    disk = None
    if tiers.disk.gib:
        block_bytes, bytes_per_s = pool.block_bytes * num_ranks, tiers.disk.gb_per_s * 1e9
        disk = Link(block_bytes, bytes_per_s), Link(block_bytes, bytes_per_s)
    return TierLinks(pool.block_bytes, tiers.host.gb_per_s * 1e9, disk)


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
