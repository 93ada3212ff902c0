"""The rules that a scheduler can be given by configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.core.kv.block_manager import FullHit
from engine.core.kv.eviction import Eviction
from engine.core.kv.offload import Offload
from engine.core.kv.tiers.tier import DISK, HOST, Tier, TierEviction, Transfer
from engine.core.offloading.rules import OffloadingRules
from engine.core.planning.policy_options import read_options
from engine.core.policies import POLICIES, find_policy
from engine.core.running.preemption import PreemptionMode


@dataclass(frozen=True)
class SchedulerOptions:
    """How steps are composed and blocks are handed out.

    Attributes:
        policy: what a step is made of, and for some policies who is next: the name of a module in
            engine.core.policies, or package.module:name for a class of your own.
        options: settings of the policy's own, by name.
        watermark: share of the pool that an admission leaves free while others run, so that they can grow; in [0, 1).
        enable_prefix_caching: blocks of equal content are shared.
        allocation: when a prompt that is cut gets its blocks: "prompt" all at its admission, "chunk" those of a chunk
            when that is planned, so that decodes may take them before.
        admission: a prompt is admitted when all its blocks are free ("full_prompt"), or with `allocation="chunk"` when
            those of its first chunk are ("first_chunk").
        eviction: which free blocks are taken first: "lru" whichever was freed first, cached or not. The others spare
            the prefix cache; then "unhashed_first" takes the cached block that was freed first, "fifo" the one that was
            cached first, "lfu" the one that was hit least often. Of a cached prefix the end goes first. "radix" is the
            tree of `policy=sglang`; "stored", of `policy=trtllm`, is "lru" where a prompt is cached when all of it is
            computed, and what was generated at the end of the sequence.
        victim: who gives way when blocks run out: "spare_last" the last admitted of the least urgent, but not twice
            running; "last" the last admitted; "least_urgent" the last come of the least urgent; "fewest_tokens_lost"
            who has computed the fewest tokens; "most_blocks_freed" who holds the most blocks that nobody shares;
            "shortest" who has the fewest tokens left to generate. `policy=priority` goes by its own order.
        preemption: what a sequence that gives way keeps of its KV: "recompute" nothing; "partial" its full blocks, the
            last of which others take when they need them; "swap" a copy in the host tier, while that has room; "auto" a
            copy if that is predicted to take less time, out and back, than to compute the lost tokens again.
        recompute_token_us: for preemption=auto: microseconds that a lost token takes to compute again. null takes the
            time of a full prefill step from the cost model; the real engine has none and needs the number.
        full_hit: what a prompt that is cached as a whole computes: "copy" its last token, in a copy of the block if
            others hold it, "recompute_block" its last block.
        queue: who is admitted first: "priority" the most urgent, and among equals the first come; "fcfs" the first come
            whatever its priority. Policies with an order of their own go by that: priority, sjf, edf; fair goes by this
            one among the requests of a tenant.
        reserved_blocks: blocks of the pool that are never handed out, as vLLM keeps one that stands for no block.
        long_prefill_token_threshold: most tokens of a prompt that a step computes; 0 for no bound of its own.
        enable_chunked_prefill: prompts may be cut to what the token budget of a step leaves.
        async_scheduling: each step is planned while the one before it runs.
        max_padding: for engines that pad the prompts of a step to the longest of them: how many tokens of padding a
            step may have, within its token budget; None for engines that do not pad.

    Raises:
        ValueError: a value is out of range, or names no policy; the message starts with the name of the field.
    """

    policy: str = "mixed"
    options: Mapping[str, Any] = field(default_factory=dict)
    watermark: float = 0.02
    enable_prefix_caching: bool = True
    allocation: Literal["prompt", "chunk"] = "prompt"
    admission: Literal["full_prompt", "first_chunk"] = "full_prompt"
    eviction: Eviction = "unhashed_first"
    victim: Literal["spare_last", "last", "least_urgent", "fewest_tokens_lost", "most_blocks_freed", "shortest"] = (
        "spare_last"
    )
    preemption: PreemptionMode = "recompute"
    recompute_token_us: float | None = None
    full_hit: FullHit = "copy"
    queue: Literal["priority", "fcfs"] = "priority"
    reserved_blocks: int = 0
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    async_scheduling: bool = False
    max_padding: int | None = None

    def __post_init__(self) -> None:
        policy = find_policy(self.policy)
        if policy is not None:
            read_options(policy.options_type, self.options, f"policy={self.policy}")
        if policy is not None and policy.chooses_victims and self.victim != "spare_last":
            raise ValueError(f"victim={self.victim!r}: policy={self.policy} preempts by its own order")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark={self.watermark:g}: must be a number >= 0 and < 1")
        for name in ("reserved_blocks", "long_prefill_token_threshold", "max_padding"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name}={value}: must be an integer >= 0")
        if self.recompute_token_us is not None and not self.recompute_token_us > 0:
            raise ValueError(f"recompute_token_us={self.recompute_token_us:g}: must be a number > 0")
        if self.recompute_token_us is not None and self.preemption != "auto":
            raise ValueError(f"recompute_token_us={self.recompute_token_us:g}: read by preemption='auto' only")
        if self.admission == "first_chunk" and self.allocation != "chunk":
            raise ValueError(f"admission={self.admission!r}: needs allocation='chunk'")
        if policy is not None:
            self._check_needs(policy.needs)

    def _check_needs(self, needs: Mapping[str, object]) -> None:
        """Raise ValueError if the policy lacks what it needs, or has the eviction that another one needs."""
        for name, each in POLICIES.items():
            if self.eviction == each.needs.get("eviction") != needs.get("eviction"):
                raise ValueError(f"eviction={self.eviction}: policy={name}, and no other, has eviction={self.eviction}")
        for name, value in needs.items():
            if (given := getattr(self, name)) != value:
                raise ValueError(
                    f"{name}={given}: policy={self.policy} needs {name}={value}; scheduler={self.policy} sets it"
                )


def conflict_with_drafts(options: SchedulerOptions) -> str | None:
    """Why these options cannot go with speculation, starting with an option's name; None if they can."""
    policy = find_policy(options.policy)
    own = None if policy is None else read_options(policy.options_type, options.options, f"policy={options.policy}")
    if getattr(own, "padded", False):
        return "options.padded=true: rows of padding draft no tokens, so speculation needs options.padded=false"
    return None


def conflict_with_reservations(options: SchedulerOptions) -> str | None:
    """Why these options cannot go with contiguous reservations, starting with an option's name; None if they can."""
    if options.enable_prefix_caching:
        return (
            "enable_prefix_caching=true: contiguous reservations share no blocks, so nothing can be cached for others; "
            "set it to false"
        )
    policy = find_policy(options.policy)
    if policy is not None and policy.chooses_victims:
        return (
            f"policy={options.policy}: preempts until enough blocks are free, but a contiguous reservation needs them "
            "in one place; use another policy"
        )
    if options.preemption != "recompute":
        return (
            f"preemption={options.preemption}: nobody with a contiguous reservation ever lacks a block; use "
            "preemption=recompute"
        )
    if options.allocation == "chunk":
        return "allocation=chunk: a contiguous reservation is made at once, at admission; use allocation=prompt"
    return None


@dataclass(frozen=True)
class OffloadOptions:
    """How blocks that leave the device's prefix cache are kept in the tiers behind it.

    Attributes:
        num_disk_blocks: size of the tier behind the host's; 0 for none.
        num_store_blocks: size of a store that servers share; 0 for none.
        overlap: hits come back while others compute; else the step waits for them.
        rules: what vLLM's connector does: blocks are stored on the host when they are computed. None: when they leave
            the device.
        host_eviction, disk_eviction: which cached block of the tier goes first: "lru" the one that was stored or found
            longest ago, "fifo" the one that was stored longest ago.
    """

    num_disk_blocks: int = 0
    num_store_blocks: int = 0
    overlap: bool = True
    host_eviction: TierEviction = "lru"
    disk_eviction: TierEviction = "lru"
    rules: OffloadingRules | None = None

    def check(self, options: SchedulerOptions) -> None:
        """Raise ValueError where a scheduler with `options` cannot serve the tiers."""
        if not options.enable_prefix_caching:
            raise ValueError("enable_prefix_caching=False: blocks that leave the prefix cache need one, to be found")
        if self.rules is not None and (options.policy != "admission_order" or options.allocation != "chunk"):
            raise ValueError(f"policy={options.policy}: what vLLM's connector does goes with its policy only")
        if self.rules is None and self.overlap and not (options.enable_chunked_prefill and options.max_padding is None):
            raise ValueError(
                "overlap=True: a prompt whose first part comes from a tier is a cut one; it needs "
                "enable_chunked_prefill=True and no max_padding"
            )

    def make(self, num_host_blocks: int) -> tuple[Tier | None, Offload]:
        """The host's tier, and all tiers of the server; a store is added by `Offload.share`.

        Raises:
            ValueError: there is no host tier, and no store.
        """
        moves: list[Transfer] = []
        if not num_host_blocks and self.num_store_blocks and not self.num_disk_blocks:
            return None, Offload([], moves, overlaps=self.overlap)
        if num_host_blocks < 1:
            raise ValueError(f"num_host_blocks={num_host_blocks}: blocks that leave the device go to the host first")
        tiers = []
        if self.num_disk_blocks:
            tiers = [Tier(DISK, self.num_disk_blocks, eviction=self.disk_eviction, moves=moves)]
        below = tiers[0] if tiers else None
        host = Tier(HOST, num_host_blocks, below=below, eviction=self.host_eviction, moves=moves)
        return host, Offload([host, *tiers], moves, overlaps=self.overlap)
