"""The other half of soundness: nobody waits who could run, and admission keeps the order of the queue."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from engine.core.admission.tenant_queue import TenantQueue
from engine.core.kv.lower_tiers import match_below
from engine.core.plan import StepPlan
from engine.core.policies import POLICIES
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from tests.engine.fuzz.fuzz_options import APART, OWN_POLICY
from tests.engine.fuzz.workload import Workload


@cache
def defaults_of(policy: str) -> Mapping[str, Any]:
    """The settings that a policy has if none are given."""
    return asdict(POLICIES[policy].options_type())


def queue_key(workload: Workload, scheduler: Scheduler, sequence: Sequence) -> tuple[float, int]:
    """Who is next, in the policy's own words; a policy of one's own is taken by its word."""
    options, request = workload.options, sequence.request
    own = {**defaults_of(options.policy), **options.options}
    urgency: float = request.priority if options.queue == "priority" else 0
    if options.policy == "priority":
        ageing = own["ageing_s"]
        urgency = request.priority if ageing is None else request.arrival_time + request.priority * round(ageing * 1e9)
    elif options.policy == "edf":
        promised = round(own["ttft_s"] * 1e9) + round(own["tpot_s"] * 1e9) * (request.max_tokens - 1)
        urgency = request.arrival_time + promised if request.deadline is None else request.deadline
    elif options.policy == "sjf" and not own["relative_error"]:
        waited = request.arrival_time * 1e-9 * own["ageing_tokens_per_s"]
        urgency = request.max_tokens - sequence.num_output_tokens + waited
    elif options.policy not in ("admission_order", "fair", "mixed", "prefill_first", "static"):
        urgency = scheduler._policy.order(sequence)
    return urgency, request.order


def check_promptness(workload: Workload, scheduler: Scheduler, plan: StepPlan | None, now: int) -> None:
    """Prove, after a plan was made, that admissions were in order and that the next in the queue could not enter."""
    if workload.options.policy in ("sglang", "trtllm"):  # they keep free what they expect others to need
        return
    queue, is_fair = scheduler.waiting, isinstance(scheduler.waiting, TenantQueue)
    head = queue.head if queue else None
    admitted = [] if plan is None else plan.admitted
    preempted = set() if plan is None else set(plan.preempted)
    for tenant in {s.request.tenant for s in [*queue, *admitted]} if is_fair else [None]:
        check_order(workload, scheduler, admitted, preempted, tenant)
    asks = workload.num_lanes == 1 and (admitted or not had_early_release(scheduler))  # a full lane does not
    if isinstance(queue, TenantQueue) and head is not None and asks:
        assert queue.served[head.request.tenant] == min(queue.served[tenant] for tenant in queue.heaps)
    if workload.options.policy == "priority":
        # Whoever gave way in a step that came out empty may have ended since, with tokens that were under way.
        gone = [queue_key(workload, scheduler, sequence) for sequence in queue if sequence in preempted]
        last = max((queue_key(workload, scheduler, sequence) for sequence in admitted), default=None)
        # Samples of one prompt have the same key. One of them can give way while its sibling's blocks are still
        # taken by a step under way, and the sibling be first in the queue when they are free.
        assert last is None or not gone or last <= min(gone), "a more urgent one gives way"
    if admitted and plan is not None and workload.num_lanes == 1:
        check_reserve(workload, scheduler, plan)
        ending = scheduler._planners[0].running.ending
        assert workload.options.policy != "static" or not ending, "a batch begins before the one before it has ended"
    assert queue.held is None or queue.held.sequence is head, "what is held of the head is the need of another one"
    may_wait = preempted or workload.num_lanes > 1 or (plan is None and scheduler.plans_ahead)
    if plan is not None and workload.options.policy == "static" and not scheduler.plans_ahead:
        check_horizon(workload, scheduler, plan)
    if (
        head is not None
        and not may_wait
        and not had_early_release(scheduler)
        and not is_delayed(workload, scheduler, plan, now)
    ):
        assert not could_enter(workload, scheduler, plan, head), "the head of the queue waits though it fits"
        if plan is not None and workload.options.policy == "priority":
            check_rank(workload, scheduler, plan, head)


def check_order(
    workload: Workload, scheduler: Scheduler, admitted: list[Sequence], preempted: set[Sequence], tenant: int | None
) -> None:
    """Prove that of the requests of a tenant, or of all, the next is at the head and none was passed over."""

    def of_tenant(sequences: Iterable[Sequence]) -> list[Sequence]:
        return [s for s in sequences if tenant is None or s.request.tenant == tenant]

    def key(sequence: Sequence) -> tuple[float, int]:
        return queue_key(workload, scheduler, sequence)

    waiting = sorted(of_tenant(scheduler.waiting), key=key)
    heads = of_tenant([*scheduler.waiting][:1])
    assert not heads or heads[0].request is waiting[0].request, "the head of the queue is not the next"
    keys = [key(sequence) for sequence in of_tenant(admitted)]
    assert keys == sorted(keys), "admitted out of order"
    behind = [key(sequence) for sequence in waiting if sequence not in preempted]
    assert not keys or not behind or keys[-1] <= behind[0], "somebody was passed over"


def is_delayed(workload: Workload, scheduler: Scheduler, plan: StepPlan | None, now: int) -> bool:
    """Whether a batch may be held back until it is full, or the first to come has waited long enough."""
    delay = round(workload.options.options.get("max_queue_delay_s", 0.0) * 1e9)
    is_full = len(scheduler.waiting) >= workload.max_num_seqs or scheduler.num_running
    return plan is None and not is_full and now < delay + min(s.request.arrival_time for s in scheduler.waiting)


def check_rank(workload: Workload, scheduler: Scheduler, plan: StepPlan, head: Sequence) -> None:
    """Nobody who runs comes after the head of the queue, unless all of them together have not what it needs."""
    (lane,) = scheduler._planners
    rank = queue_key(workload, scheduler, head)
    after = [s for s in lane.candidates() if queue_key(workload, scheduler, s) > rank]
    num_tokens = workload.num_decode_tokens(plan, scheduler.max_model_len)
    num_tokens += sum(chunk.num_tokens for chunk in plan.prefills)
    is_full = num_tokens >= workload.max_num_batched_tokens
    if not after or is_full or not workload.options.enable_chunked_prefill or workload.options.max_padding is not None:
        return
    num_seats = lane.running.num_seats - sum(1 + s.num_forks for s in after) + 1 + head.num_forks
    num_due = scheduler.blocks.blocks_for(workload.tokens_per_decode)  # at most, of each of them
    num_blocks = scheduler.blocks.num_free_blocks + sum(len(s.block_table) - num_due for s in after)
    kept = [s for s in scheduler.waiting.holders if queue_key(workload, scheduler, s) > rank]
    num_blocks += sum(len(s.block_table) for s in kept)
    needed = scheduler.blocks.blocks_for(head.num_tokens) + reserve_of(workload)
    assert num_seats > workload.max_num_seqs or needed > num_blocks, "a less urgent one keeps its place"


def had_early_release(scheduler: Scheduler) -> bool:
    """With steps planned ahead, blocks of an ending sequence may have been taken: then too nobody is admitted."""
    return scheduler.plans_ahead


def check_horizon(workload: Workload, scheduler: Scheduler, plan: StepPlan) -> None:
    """A batch that decodes is not planned step by step, whoever waits for its end."""
    if workload.num_lanes == 1 and plan.num_decodes and not plan.prefills and not plan.transfers:
        decodes = scheduler._planners[0].running.decodes
        blocks = scheduler.blocks
        num_free = blocks.num_free_blocks if blocks.offload is None else blocks.pool.num_uncached
        steps = decodes.affordable_steps(decodes.next_event(), num_free)
        assert plan.horizon == steps, "a step is planned in which there is nothing to decide"


def check_findable(workload: Workload, scheduler: Scheduler) -> None:
    """All full blocks that decodes have computed are known by their content, as far as that is known."""
    finds = workload.num_drafts is None or workload.options.options.get("finds_verified", False)
    if not workload.options.enable_prefix_caching or scheduler.plans_ahead or not finds:
        return
    if scheduler.blocks.finds_late:  # what is generated is cached at its end
        return
    for running in (planner.running for planner in scheduler._planners if not planner.running.flights):
        for sequence in running.decodes.findable:
            num_full = sequence.num_computed_tokens // workload.block_size
            if sequence.token_ids is None:
                num_full = min(num_full, len(sequence.block_hashes or ()))
            assert sequence.num_registered_blocks == num_full, "what a decode has computed cannot be found"


def check_found_ahead(
    workload: Workload, scheduler: Scheduler, plan: StepPlan, under_way: Mapping[Sequence, int]
) -> None:
    """Where steps are planned ahead, all full blocks of known tokens that decodes have computed can be found when they
    are planned: only those that the step under way brings, so many of each, are not known."""
    running, options = scheduler._planners[plan.lane].running, workload.options
    if not options.enable_prefix_caching or scheduler.blocks.finds_late:
        return
    if not plan.num_decodes:
        return
    before = running.flights[0] if len(running.flights) > 1 else None
    for sequence in running.decodes.findable:
        waits = before is not None and (sequence not in running.decodes.fresh or sequence in before.started)
        num_unknown = under_way.get(sequence, workload.tokens_per_decode) if waits else 0
        num_full = (sequence.num_tokens - num_unknown) // workload.block_size
        if sequence.token_ids is None:
            num_full = min(num_full, len(sequence.block_hashes or ()))
        assert sequence.num_registered_blocks >= num_full, "what is known of a decode cannot be found"


def check_seats(workload: Workload, scheduler: Scheduler) -> None:
    """The lanes share out all seats, as evenly as can be."""
    seats = [lane.limits.max_num_seqs for lane in scheduler._planners]
    assert sum(seats) == workload.max_num_seqs and max(seats) - min(seats) <= 1, "seats are lost or shared"


def reserve_of(workload: Workload) -> int:
    if workload.contiguous is not None:
        return 0
    usable = workload.num_blocks - workload.options.reserved_blocks
    return math.ceil(workload.options.watermark * usable)


def check_reserve(workload: Workload, scheduler: Scheduler, plan: StepPlan) -> None:
    """Whoever was admitted beside others left the watermark free."""
    others = scheduler.num_running - len(plan.admitted)
    if workload.options.allocation == "prompt" and (others or len(plan.admitted) > 1):
        # Those that come back from the host are admitted without a prompt, so that decodes may take blocks after them.
        taken = sum(len(growth.blocks) for growth in plan.growth) + sum(t.is_within_device for t in plan.transfers)
        free = scheduler.blocks.num_free_blocks + (taken if plan.parked else 0)
        assert free >= reserve_of(workload), "an admission went below the watermark"


def outputs_to_come(scheduler: Scheduler, head: Sequence) -> int:
    """Blocks for what those that run and the head of the queue generate, beyond those that they get now."""
    size, (lane,) = scheduler.blocks.block_size, scheduler._planners
    held = [(sequence, len(sequence.block_table)) for sequence in lane.running.sequences]
    held.append((head, math.ceil(head.num_tokens / size)))
    return sum(max(0, math.ceil((sequence.end_length - 1) / size) - count) for sequence, count in held)


def could_enter(workload: Workload, scheduler: Scheduler, plan: StepPlan | None, head: Sequence) -> bool:
    """Whether the head of the queue fits into what the plan leaves of seats, tokens and blocks."""
    options, blocks = workload.options, scheduler.blocks
    (lane,) = scheduler._planners
    if lane.running.num_seats + head.num_forks + 1 > workload.max_num_seqs:
        return False
    num_decodes = 0 if plan is None else plan.num_decodes
    sizes = [] if plan is None else [chunk.num_tokens for chunk in plan.prefills]
    if options.policy == "static" and (lane.running.sequences and (num_decodes or not sizes)):
        return False
    decodes = lane.running.decodes
    if options.policy == "static" and decodes.fresh.keys() != decodes.sequences.keys():
        return False  # one that came back late computes its prompt when the batch has begun to decode
    decode_tokens = 0
    if plan is not None and options.policy not in APART:
        decode_tokens = workload.num_decode_tokens(plan, scheduler.max_model_len)
    budget = workload.max_num_batched_tokens - decode_tokens - sum(sizes)
    reserve = reserve_of(workload) if lane.running.sequences else 0
    reserve += outputs_to_come(scheduler, head) if options.policy == OWN_POLICY and lane.running.sequences else 0
    if head.host_blocks is not None:
        return budget > 0 and blocks.blocks_for(head.num_tokens) + reserve <= blocks.num_free_blocks
    match = blocks.match(head)
    if options.admission == "first_chunk" and options.enable_prefix_caching and plan is not None and plan.growth:
        return False  # a decode may have evicted a cached block of the head, so that its first chunk starts earlier
    if num_decodes and options.policy in APART:
        # What these decodes fill can be found from the next step on.
        kept = match.num_kept * blocks.block_size
        match = match._replace(blocks=[], num_cached_tokens=kept, num_revived=0, copy_last=False)
    elif blocks.offload is not None:
        match = match_below(blocks, head, match)
    wanted = head.num_tokens - match.num_cached_tokens
    if options.long_prefill_token_threshold:
        wanted = min(wanted, options.long_prefill_token_threshold)
    checked = head.num_tokens if options.admission == "full_prompt" else match.num_cached_tokens + min(wanted, budget)
    if blocks.offload is not None and blocks.offload.must_wait(match):
        return budget > 0 and blocks.blocks_needed(head, match, checked) + reserve <= blocks.num_free_blocks
    may_cut = options.enable_chunked_prefill and (options.policy not in APART or not sizes)
    padding = workload.padding(plan, scheduler.max_model_len, head, match.num_cached_tokens)
    if padding != 0:
        needed = blocks.blocks_needed(head, match, head.num_tokens + (padding or 0)) + reserve
        fits = padding is not None and padding < budget and needed <= blocks.num_free_blocks
        return fits and not pads_too_much(workload, sizes, 1 + (padding or 0))
    num_tokens = min(wanted, budget)
    if num_tokens <= 0 or (wanted > budget and not may_cut):
        return False
    if pads_too_much(workload, sizes, num_tokens):
        return False
    checked = head.num_tokens if options.admission == "full_prompt" else match.num_cached_tokens + num_tokens
    return blocks.blocks_needed(head, match, checked) + reserve <= blocks.num_free_blocks


def pads_too_much(workload: Workload, sizes: list[int], num_tokens: int) -> bool:
    """Whether one more prompt chunk, of so many tokens, would bring the padding of a step over its limit."""
    options = workload.options
    most = workload.max_num_batched_tokens if workload.pads else None
    most = most if options.max_padding is None else options.max_padding
    if most is None or not sizes:
        return False
    padded = max(*sizes, num_tokens) * (len(sizes) + 1)
    return padded > workload.max_num_batched_tokens or padded - sum(sizes) - num_tokens > most
