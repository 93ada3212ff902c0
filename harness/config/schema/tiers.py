"""Configuration of the memories behind the device's that KV blocks can move to."""

from typing import Annotated

from engine.core.kv.tier import TierEviction
from harness.config.schema.base import ConfigModel, within


class HostTierConfig(ConfigModel):
    """Host memory for KV blocks.

    Attributes:
        gib: its size in GiB, for the blocks of all ranks together; 0 for none.
        gb_per_s: GB/s that each device copies to it and, at the same time, from it. The real engine copies as fast as
            its link does, and reads this only for scheduler.preemption=auto.
        eviction: which block of the prefix cache goes first: lru, the one that was stored or found longest ago; fifo,
            the one that was stored longest ago.
    """

    gib: Annotated[float, within("tier_gib")] = 0.0
    gb_per_s: Annotated[float, within("tier_gb_per_s")] = 25.0
    eviction: TierEviction = "lru"


class DiskTierConfig(ConfigModel):
    """A disk for blocks of the prefix cache that leave host memory; in simulation only.

    Attributes:
        gib: its size in GiB, for the blocks of all ranks together; 0 for none.
        gb_per_s: GB/s that it writes and, at the same time, reads, for all ranks together.
        eviction: as that of the host.
    """

    gib: Annotated[float, within("tier_gib")] = 0.0
    gb_per_s: Annotated[float, within("tier_gb_per_s")] = 5.0
    eviction: TierEviction = "lru"


class OffloadConfig(ConfigModel):
    """What the tiers keep of the prefix cache.

    Attributes:
        offload: blocks that leave the device's prefix cache go to host memory, then to the disk; hits come back from
            there. They give way to the KV of preempted sequences with scheduler.preemption=swap.
        overlap: a request with such hits waits for them while others compute; if false, the step waits for them.
    """

    offload: bool = False
    overlap: bool = True


class TiersConfig(OffloadConfig):
    """The tiers, nearest to the device first."""

    host: HostTierConfig = HostTierConfig()
    disk: DiskTierConfig = DiskTierConfig()
