"""Configuration of the memories behind the device's that KV blocks can move to."""

from typing import Annotated

from harness.config.base import ConfigModel, within


class HostTierConfig(ConfigModel):
    """Host memory for KV blocks.

    Attributes:
        gib: its size in GiB, for the blocks of all ranks together; 0 for none.
        gb_per_s: GB/s that each device copies to it and, at the same time, from it. The real engine copies as fast as
            its link does, and reads this only for scheduler.preemption=auto.
    """

    gib: Annotated[float, within("tier_gib")] = 0.0
    gb_per_s: Annotated[float, within("tier_gb_per_s")] = 25.0


class TiersConfig(ConfigModel):
    """The tiers, nearest to the device first."""

    host: HostTierConfig = HostTierConfig()
