"""How a scheduler is put together from the rules that it is given."""

from __future__ import annotations

from math import ceil

from engine.core.admission.limits import Limits
from engine.core.admission.waiting_queue import by_arrival, by_priority
from engine.core.decodes.interface import MakeDecodes
from engine.core.decodes.uniform import uniform_decodes
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.block_pool import BlockPool
from engine.core.kv.reserved.contiguous import ContiguousManager
from engine.core.kv.reserved.reservation import Contiguous
from engine.core.kv.reserved.stateful import StatefulManager
from engine.core.kv.tiers.tier import HOST, Tier
from engine.core.kv.trees.radix import RadixManager
from engine.core.kv.trees.stored import StoredManager
from engine.core.offloading.connector import Connector
from engine.core.offloading.host_cache import HostCache
from engine.core.planning.policy_options import read_options
from engine.core.policies import find_policy
from engine.core.running.preemption import VICTIM_RULES, Preemption
from engine.core.scheduler import Scheduler
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions, conflict_with_reservations


def make_scheduler(
    options: SchedulerOptions,
    *,
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int | None = None,
    num_host_blocks: int = 0,
    offload: OffloadOptions | None = None,
    transfer_block_us: float = 0.0,
    num_lanes: int = 1,
    make_decodes: MakeDecodes = uniform_decodes,
    contiguous: Contiguous | None = None,
    cached_size: float = 1.0,
    state_blocks: int = 0,
) -> Scheduler:
    """A scheduler over a new pool of `num_blocks` blocks of `block_size` tokens.

    `num_host_blocks` is the size of the host tier and `transfer_block_us` the time that a block takes to it or back,
    which preemption="auto" compares with `options.recompute_token_us`. With `offload`, what leaves the prefix cache
    goes there and further. With `contiguous`, blocks are not handed out one by one but as reservations; what is
    admitted leaves no watermark then, as nobody grows. `cached_size` is the memory of a cached block as a multiple of a
    held one's. Each sequence holds `state_blocks` for its state, beside those of its tokens.

    Raises:
        ValueError: a number is out of its range, `options.preemption` needs one that is not given, or `offload` or
            `contiguous` goes with none of `options`.
    """
    if options.eviction in ("radix", "stored") and max_num_batched_tokens < block_size:
        raise ValueError(f"max_num_batched_tokens={max_num_batched_tokens}: must be >= block_size={block_size}")
    if options.preemption in ("swap", "auto") and not num_host_blocks:
        raise ValueError(f"preemption={options.preemption!r}: needs a host tier to move blocks to")
    if options.preemption == "auto" and options.recompute_token_us is None:
        raise ValueError("recompute_token_us=None: preemption='auto' needs the time of a lost token")
    blocks = _make_blocks(
        options, num_blocks, block_size, num_host_blocks, offload, max_model_len, contiguous, cached_size, num_lanes,
        make_decodes, state_blocks,
    )  # fmt: skip
    watermark = 0.0 if contiguous else options.watermark
    preemption = Preemption(
        VICTIM_RULES[options.victim], options.preemption, options.recompute_token_us or 0.0, transfer_block_us
    )
    limits = Limits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        watermark_blocks=ceil(watermark * blocks.num_blocks),
        allocates_chunks=options.allocation == "chunk",
        checks_full_prompt=options.admission == "full_prompt",
        max_chunk_tokens=options.long_prefill_token_threshold,
        cuts_prompts=options.enable_chunked_prefill,
        max_padding=options.max_padding,
    )
    order = by_priority if options.queue == "priority" else by_arrival
    policy = find_policy(options.policy)
    if policy is None:
        raise ValueError(f"policy={options.policy!r}: has not been imported")
    return Scheduler(
        blocks,
        policy(order, preemption, read_options(policy.options_type, options.options, f"policy={options.policy}")),
        limits,
        max_model_len=max_model_len,
        plans_ahead=options.async_scheduling,
        num_lanes=num_lanes,
        make_decodes=make_decodes,
    )


def _make_blocks(
    options: SchedulerOptions,
    num_blocks: int,
    block_size: int,
    num_host_blocks: int,
    offload: OffloadOptions | None,
    max_model_len: int | None,
    contiguous: Contiguous | None,
    cached_size: float,
    num_lanes: int,
    make_decodes: MakeDecodes,
    state_blocks: int,
) -> BlockManager:
    num_blocks -= options.reserved_blocks
    if contiguous is not None:
        if conflict := conflict_with_reservations(options):
            raise ValueError(conflict)
        if num_host_blocks:
            raise ValueError(f"num_host_blocks={num_host_blocks}: with contiguous reservations nobody is swapped out")
        longest = max_model_len or num_blocks * block_size
        num_drafts = make_decodes(block_size, longest).tokens_per_decode - 1
        num_drafts += bool(num_drafts and options.async_scheduling)  # those behind the last token may be verified, too
        return ContiguousManager(num_blocks, block_size, contiguous, longest, num_drafts)
    if options.eviction in ("radix", "stored"):
        if offload is not None or num_lanes > 1:
            raise ValueError(f"eviction={options.eviction}: goes with neither tiers behind the device nor a pipeline")
        if options.eviction == "stored":
            return StoredManager(num_blocks, block_size, enable_prefix_caching=options.enable_prefix_caching)
        return RadixManager(num_blocks, block_size, enable_prefix_caching=options.enable_prefix_caching)
    host = Tier(HOST, num_host_blocks) if num_host_blocks else None
    if state_blocks:
        return StatefulManager(num_blocks, block_size, state_blocks, eviction=options.eviction, host=host)
    cached_tiers = None
    if offload is not None:
        offload.check(options)
    if offload is not None and offload.rules is None:
        host, cached_tiers = offload.make(num_host_blocks)
    blocks = BlockManager(
        num_blocks,
        block_size,
        enable_prefix_caching=options.enable_prefix_caching,
        eviction=options.eviction,
        full_hit=options.full_hit,
        host=host,
        offload=cached_tiers,
        cached_size=cached_size,
    )
    if offload is not None and offload.rules is not None:
        cache = HostCache(num_host_blocks // offload.rules.chunk_blocks, offload.rules.recency)
        blocks.connector = Connector(cache, block_size, offload.rules, blocks.hashes_of)
        if isinstance(blocks.pool, BlockPool):
            blocks.pool.tail_first = True  # which blocks a store still reads when they are taken again, depends on it
    return blocks
