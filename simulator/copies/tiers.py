"""The memories behind the device's, in blocks and rates."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.kv.tiers.shared_store import SharedStore
from engine.core.kv.tiers.tier import TierEviction
from engine.core.scheduler_options import OffloadOptions
from simulator.copies.transfers import Link, StoreLink, TierLinks
from simulator.models.kv_pool import KVPool


@dataclass(frozen=True)
class StoreTier:
    """A store of `num_blocks` blocks that servers share.

    Attributes:
        num_servers: servers with one store, in their order; None for all.
        bytes_per_s: between each device and the store, in each direction.
        latency_ns: of a transfer, beside that.
    """

    num_blocks: int
    bytes_per_s: float
    latency_ns: int = 0
    num_servers: int | None = None
    eviction: TierEviction = "lru"


@dataclass(frozen=True)
class Tiers:
    """Host memory, a disk, and a store that servers share.

    Attributes:
        num_host_blocks: KV blocks, each with the shares of all ranks, that host memory has room for.
        host_gb_per_s: GB/s that each device copies to it and, at the same time, from it.
        disk_gb_per_s: GB/s that the disk writes and, at the same time, reads, for all ranks together.
        store: None without one.
        offload: what the core must know of the tiers behind the prefix cache; None if its blocks do not go there.
    """

    num_host_blocks: int = 0
    host_gb_per_s: float = 25.0
    disk_gb_per_s: float = 5.0
    store: StoreTier | None = None
    offload: OffloadOptions | None = None

    @property
    def num_blocks(self) -> int:
        """Those of the server's own tiers."""
        return self.num_host_blocks + (self.offload.num_disk_blocks if self.offload else 0)

    def transfer_block_us(self, pool: KVPool) -> float:
        """Microseconds that a block takes to the host or back."""
        return pool.block_bytes / (self.host_gb_per_s * 1e3)

    def links(self, pool: KVPool, num_ranks: int, store: SharedStore | None = None) -> TierLinks | None:
        """The link of one device to its host, which the device's share of each block takes, the disk's, for all, and
        that of the device to a store; None without host tier and store."""
        if not self.num_host_blocks and store is None:
            return None
        disk = None
        if self.offload is not None and self.offload.num_disk_blocks:
            block_bytes, bytes_per_s = pool.block_bytes * num_ranks, self.disk_gb_per_s * 1e9
            disk = Link(block_bytes, bytes_per_s), Link(block_bytes, bytes_per_s)
        to_store = None
        if store is not None and self.store is not None:
            to_store = StoreLink(store, pool.block_bytes, self.store.bytes_per_s, self.store.latency_ns)
        return TierLinks(pool.block_bytes, self.host_gb_per_s * 1e9, disk, to_store)
