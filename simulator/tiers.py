"""The memories behind the device's, in blocks and rates."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.scheduler_options import OffloadOptions
from simulator.models.kv_pool import KVPool
from simulator.transfers import Link, TierLinks


@dataclass(frozen=True)
class Tiers:
    """Host memory and a disk.

    Attributes:
        num_host_blocks: KV blocks, each with the shares of all ranks, that host memory has room for.
        host_gb_per_s: GB/s that each device copies to it and, at the same time, from it.
        disk_gb_per_s: GB/s that the disk writes and, at the same time, reads, for all ranks together.
        offload: what the core must know of the tiers behind the prefix cache; None if its blocks do not go there.
    """

    num_host_blocks: int = 0
    host_gb_per_s: float = 25.0
    disk_gb_per_s: float = 5.0
    offload: OffloadOptions | None = None

    @property
    def num_blocks(self) -> int:
        """Those of all tiers."""
        return self.num_host_blocks + (self.offload.num_disk_blocks if self.offload else 0)

    def transfer_block_us(self, pool: KVPool) -> float:
        """Microseconds that a block takes to the host or back."""
        return pool.block_bytes / (self.host_gb_per_s * 1e3)

    def links(self, pool: KVPool, num_ranks: int) -> TierLinks | None:
        """The link of one device to its host, which the device's share of each block takes, and the disk's, for all;
        None without a host tier."""
        if not self.num_host_blocks:
            return None
        disk = None
        if self.offload is not None and self.offload.num_disk_blocks:
            block_bytes, bytes_per_s = pool.block_bytes * num_ranks, self.disk_gb_per_s * 1e9
            disk = Link(block_bytes, bytes_per_s), Link(block_bytes, bytes_per_s)
        return TierLinks(pool.block_bytes, self.host_gb_per_s * 1e9, disk)
