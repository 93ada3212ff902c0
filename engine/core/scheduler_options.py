"""The rules that a scheduler can be given by configuration, and how it is put together from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.core.block_manager import BlockManager, Eviction, FullHit
from engine.core.policy import POLICIES, VICTIM_RULES
from engine.core.scheduler import Allocation, Queue, Scheduler


@dataclass(frozen=True)
class SchedulerOptions:
    """How steps are composed and blocks are handed out: the keys of the configuration group `scheduler`.

    Attributes:
        policy: what goes into a step, by its name in `engine.core.policy.POLICIES`.
        watermark: share of the KV pool kept free when a request is admitted, from 0 to below 1.
        enable_prefix_caching: reuse the KV blocks of prompts that start alike.
        allocation: when a prompt gets its blocks: all at its admission (prompt), or chunk by chunk (chunk).
        eviction: which free block is taken first: one that the prefix cache does not know (unhashed_first), or the
            least recently used (lru).
        victim: whom to preempt: the last admitted but never the same sequence twice running (spare_last), or always the
            last admitted (last).
        full_hit: what a prompt that is in the cache as a whole computes: its last token, in a copy of its last block
            (copy), or its whole last block (recompute_block).
        queue: who is admitted next: the most urgent, then by arrival (priority), or by arrival alone (fcfs).
        reserved_blocks: blocks of the pool that are never handed out; vLLM keeps one as padding.
        async_scheduling: plan each step while the one before it runs; in simulation only.
        max_padding: most tokens of padding in a step, for engines that pad the prompts of a step to the longest; null
            for engines that do not pad.

    Raises:
        ValueError: a value is out of range, or names no policy; the message starts with the name of the field.
    """

    policy: str = "mixed"
    watermark: float = 0.02
    enable_prefix_caching: bool = True
    allocation: Allocation = "prompt"
    eviction: Eviction = "unhashed_first"
    victim: Literal["spare_last", "last"] = "spare_last"
    full_hit: FullHit = "copy"
    queue: Queue = "priority"
    reserved_blocks: int = 0
    async_scheduling: bool = False
    max_padding: int | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy={self.policy!r}: choose one of {', '.join(sorted(POLICIES))}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark={self.watermark:g}: must be a number >= 0 and < 1")
        for name in ("reserved_blocks", "max_padding"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name}={value}: must be an integer >= 0")


def make_scheduler(
    options: SchedulerOptions,
    *,
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int | None = None,
    counts_scattered: bool = True,
) -> Scheduler:
    """A scheduler over a new pool of `num_blocks` blocks of `block_size` tokens; raises ValueError as its parts do."""
    blocks = BlockManager(
        num_blocks - options.reserved_blocks,
        block_size,
        enable_prefix_caching=options.enable_prefix_caching,
        eviction=options.eviction,
        full_hit=options.full_hit,
    )
    return Scheduler(
        blocks,
        POLICIES[options.policy](VICTIM_RULES[options.victim]),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        watermark=options.watermark,
        allocation=options.allocation,
        queue=options.queue,
        async_scheduling=options.async_scheduling,
        max_padding=options.max_padding,
        counts_scattered=counts_scattered,
    )
