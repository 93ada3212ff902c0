"""Configuration of the memories behind the device's that KV blocks can move to."""

from typing import Annotated, Literal

from pydantic import Field

from engine.core.kv.tiers.tier import TierEviction
from harness.config.schema.base import ConfigModel, within
from harness.config.schema.system import EngineConfig, SchedulerConfig


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


class StoreTierConfig(ConfigModel):
    """A store that servers share, such as that of LMCache or Mooncake, over `network`; in simulation only.

    Attributes:
        gib: its size in GiB, for the blocks of all ranks of a server together; 0 for none.
        servers: how many servers share one, in their order; null for all of the fleet.
        eviction: as that of the host.
    """

    gib: Annotated[float, within("tier_gib")] = 0.0
    servers: Annotated[int, within("replicas")] | None = None
    eviction: TierEviction = "lru"


class OffloadConfig(ConfigModel):
    """What the tiers keep of the prefix cache.

    Attributes:
        offload: blocks that leave the device's prefix cache go to host memory, then to the disk; hits come back from
            there. What is computed goes to the store at once, where there is one. They give way to the KV of preempted
            sequences with scheduler.preemption=swap.
        overlap: a request with such hits waits for them while others compute; if false, the step waits for them.
        rule: evicted, as above; or vllm, what its OffloadingConnector does in the version of engine.vllm_version: all
            that is computed is stored in host memory, beside the steps, and who finds its prompt there waits without a
            seat until it is back.
        chunk_blocks: with rule=vllm, KV blocks that are stored and found as one.
    """

    offload: bool = False
    overlap: bool = True
    rule: Literal["evicted", "vllm"] = "evicted"
    chunk_blocks: Annotated[int, Field(ge=1, le=1024)] = 1


class TiersConfig(OffloadConfig):
    """The tiers, nearest to the device first."""

    host: HostTierConfig = Field(default_factory=HostTierConfig)
    disk: DiskTierConfig = Field(default_factory=DiskTierConfig)
    store: StoreTierConfig = Field(default_factory=StoreTierConfig)

    @property
    def is_on(self) -> bool:
        """Whether there is any memory behind the device's."""
        return bool(self.host.gib or self.store.gib)


def check_offload(tiers: TiersConfig, scheduler: SchedulerConfig, engine: EngineConfig) -> None:
    """Raise ValueError where the prefix cache cannot go to these tiers."""
    for name, gib in (("disk", tiers.disk.gib), ("store", tiers.store.gib)):
        if gib and engine.kind != "sim":
            raise ValueError(
                f"tiers.{name}.gib={gib:g}: engine={engine.kind} has no {name} tier; use engine=sim or "
                f"tiers.{name}.gib=0"
            )
        if gib and not tiers.offload:
            raise ValueError(
                f"tiers.{name}.gib={gib:g}: only blocks of the prefix cache go to the {name}; use "
                f"tiers.offload=true or tiers.{name}.gib=0"
            )
    if not tiers.offload:
        return
    if not tiers.host.gib and (tiers.disk.gib or not tiers.store.gib):
        raise ValueError("tiers.offload=true: blocks go to host memory first; set tiers.host.gib")
    if not scheduler.enable_prefix_caching:
        raise ValueError("tiers.offload=true: without scheduler.enable_prefix_caching no block has a hash to find")
    if tiers.rule == "vllm":
        _check_connector(tiers, scheduler, engine)
        return
    if tiers.overlap and not (scheduler.enable_chunked_prefill and scheduler.max_padding is None):
        raise ValueError(
            "tiers.overlap=true: a prompt whose first part comes from a tier is a cut one, which this scheduler "
            "does not run (enable_chunked_prefill, max_padding); use tiers.overlap=false"
        )


def _check_connector(tiers: TiersConfig, scheduler: SchedulerConfig, engine: EngineConfig) -> None:
    wrong = {
        f"engine={engine.kind}": engine.kind != "sim",
        f"scheduler.policy={scheduler.policy}": scheduler.policy != "admission_order",
        f"scheduler.allocation={scheduler.allocation}": scheduler.allocation != "chunk",
        f"scheduler.preemption={scheduler.preemption}": scheduler.preemption != "recompute",
        f"tiers.disk.gib={tiers.disk.gib:g}": tiers.disk.gib > 0,
        f"tiers.store.gib={tiers.store.gib:g}": tiers.store.gib > 0,
        f"tiers.host.eviction={tiers.host.eviction}": tiers.host.eviction != "lru",
        "tiers.overlap=false": not tiers.overlap,
    }
    for name, is_so in wrong.items():
        if is_so:
            raise ValueError(
                f"{name}: not with tiers.rule=vllm, which is for engine=sim scheduler=vllm and host memory"
            )
