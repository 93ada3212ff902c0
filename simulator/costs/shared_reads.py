"""KV that several decodes of a step share: how much of it attention does not read from the device's memory.

FlashAttention computes each sequence and KV head in a thread block of its own. Those that run at a time read the same
block of a prefix side by side, so that it comes from memory once and the others find it in the L2 cache:

    memory reads   each shared block once for each wave of sequences among which it has a holder
    re-reads       as fast as `Device.kv_reuse_bandwidth` says, which limits all that is read

FlashAttention 2 starts the blocks of one KV head for all sequences before those of the next one (`grid(num_m_block,
batch, heads)` in flash_fwd_launch_template.h), two on each multiprocessor of an A100; FlashAttention 3 those of all KV
heads of a sequence before the next sequence, one on each multiprocessor (`VarlenDynamicPersistentTileScheduler` in
hopper/tile_scheduler.hpp). docs/fidelity.md compares this with measurements of others.
"""

from __future__ import annotations

from engine.core.work import StepWork
from simulator.device import Device
from simulator.models.grouped_query import GroupedQuery
from simulator.models.model import Model
from simulator.profile.profile import Profile

_BLOCKS_PER_MULTIPROCESSOR = {2: 2, 3: 1}
_VLLM = "/vllm/"


class SharedReads:
    """What a step does not read.

    Attributes:
        at_once: sequences whose attention runs at a time.
        least: the share of the contexts whose time attention takes at least, however little it reads from memory.
    """

    __slots__ = ("at_once", "least")

    def __init__(self, at_once: float, least: float) -> None:
        self.at_once = at_once
        self.least = least

    def unread(self, work: StepWork) -> float:
        """Tokens of the context that a decode finds in the cache, in the mean over the decodes of `work`."""
        saved, waves = float(work.num_saved_tokens), work.num_decodes / self.at_once
        if waves > 1:
            shared = work.num_shared_tokens
            holders = 1 + saved / shared  # decodes that hold a shared block, in the mean; they are in any wave
            saved = max(0.0, shared * (holders - waves * (1 - (1 - 1 / waves) ** holders)))
        return saved / work.num_decodes


def shared_reads_of(profile: Profile, model: Model, device: Device, ranks: int) -> SharedReads | None:
    """For `model` on `ranks` devices, with vLLM's kernels; None where others were timed, what they share was not
    measured on the device, or no attention of the model is of that kind."""
    attention, version, reuse = model.first(GroupedQuery), device.flash_attention, device.kv_reuse_bandwidth
    if attention is None or version is None or reuse is None or device.multiprocessors is None:
        return None
    if _VLLM not in str(profile.meta.source.get("database")):
        return None
    at_once = float(device.multiprocessors * _BLOCKS_PER_MULTIPROCESSOR[version])
    if version == 3:
        at_once /= attention.kv_heads_per_rank(ranks)
    return SharedReads(at_once, min(1.0, device.memory_bandwidth * device.memory_efficiency / reuse))
