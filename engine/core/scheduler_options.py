"""The rules that a scheduler can be given by configuration, and how it is put together from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.core.block_manager import BlockManager, Eviction, FullHit
from engine.core.policy import POLICIES, VICTIM_RULES
from engine.core.scheduler import Allocation, Queue, Scheduler


@dataclass(frozen=True)
class SchedulerOptions:
    """How steps are composed and blocks are handed out; the values are explained where they are used:

    `policy` and `victim` in `engine.core.policy`; `watermark`, `allocation`, `queue`, `async_scheduling` and
    `max_padding` in `Scheduler`; `enable_prefix_caching`, `eviction` and `full_hit` in `BlockManager`.
    `reserved_blocks` of the pool are never handed out, as vLLM keeps one that stands for no block.
    """

    policy: Literal["prefill_first", "mixed"] = "mixed"
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
