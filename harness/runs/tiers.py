"""The memories behind the device's, in blocks and rates instead of GiB and GB/s."""

from __future__ import annotations

from harness.config import TiersConfig
from harness.errors import ConfigError
from simulator.memory import GIB, KVPool
from simulator.quantities import MAX_BLOCKS
from simulator.transfers import HostLink


def num_host_blocks(tiers: TiersConfig, pool: KVPool, num_ranks: int) -> int:
    """KV blocks, each with the shares of all ranks, that host memory has room for.

    Raises:
        ConfigError: not one fits, or more than can be simulated.
    """
    gib, block_bytes = tiers.host.gib, pool.block_bytes * num_ranks
    num_blocks = int(gib * GIB) // block_bytes
    if gib and not num_blocks:
        raise ConfigError(f"tiers.host.gib={gib:g}: has no room for a KV block of {block_bytes / GIB:.3g} GiB")
    if num_blocks > MAX_BLOCKS:
        raise ConfigError(
            f"tiers.host.gib={gib:g}: has room for {num_blocks} KV blocks, at most {MAX_BLOCKS} are simulated; set "
            "less or a larger block_size"
        )
    return num_blocks


def transfer_block_us(tiers: TiersConfig, pool: KVPool) -> float:
    """Microseconds that a block takes to the host or back."""
    return pool.block_bytes / (tiers.host.gb_per_s * 1e3)


def host_link(tiers: TiersConfig, pool: KVPool) -> HostLink:
    """The link of one device to its host, which the device's share of each block takes."""
    return HostLink(pool.block_bytes, tiers.host.gb_per_s * 1e9)
