"""The other half of soundness: nobody waits who could run, and admission keeps the order of the queue."""

from __future__ import annotations

import math

from engine.core.kv.prefix_index import NO_MATCH
from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from tests.engine.fuzz_workloads import Workload


def queue_key(workload: Workload, sequence: Sequence) -> tuple[int, int]:
    urgency = sequence.request.priority if workload.options.queue == "priority" else 0
    return urgency, sequence.request.order


def check_promptness(workload: Workload, scheduler: Scheduler, plan: StepPlan | None, now: int) -> None:
    """Prove, after a plan was made, that admissions were in order and that the next in the queue could not enter."""
    waiting = sorted(scheduler.waiting, key=lambda sequence: queue_key(workload, sequence))
    heads = [*scheduler.waiting][:1] + waiting[:1]
    assert not waiting or heads[0].request is heads[1].request, "the head of the queue is not the next"
    admitted = [] if plan is None else plan.admitted
    preempted = set() if plan is None else set(plan.preempted)
    keys = [queue_key(workload, sequence) for sequence in admitted]
    assert keys == sorted(keys), "admitted out of order"
    behind = [queue_key(workload, sequence) for sequence in waiting if sequence not in preempted]
    assert not keys or not behind or keys[-1] <= behind[0], "somebody was passed over"
    if admitted and plan is not None and workload.num_lanes == 1:
        check_reserve(workload, scheduler, plan)
    may_wait = preempted or workload.num_lanes > 1 or (plan is None and scheduler.plans_ahead)
    if plan is not None and workload.options.policy == "static" and not scheduler.plans_ahead:
        check_horizon(workload, scheduler, plan)
    if waiting and not may_wait and not had_early_release(scheduler):
        assert not could_enter(workload, scheduler, plan, waiting[0]), "the head of the queue waits though it fits"


def had_early_release(scheduler: Scheduler) -> bool:
    """With steps planned ahead, blocks of an ending sequence may have been taken: then too nobody is admitted."""
    return scheduler.plans_ahead


def check_horizon(workload: Workload, scheduler: Scheduler, plan: StepPlan) -> None:
    """A batch that decodes is not planned step by step, whoever waits for its end."""
    if workload.num_lanes == 1 and plan.num_decodes and not plan.prefills and not plan.transfers:
        decodes = scheduler._planners[0].running.decodes
        steps = decodes.affordable_steps(decodes.next_event(), scheduler.blocks.num_free_blocks)
        assert plan.horizon == steps, "a step is planned in which there is nothing to decide"


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
        assert scheduler.blocks.num_free_blocks >= reserve_of(workload), "an admission went below the watermark"


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
    decode_tokens = num_decodes * workload.tokens_per_decode if options.policy in ("mixed", "admission_order") else 0
    budget = workload.max_num_batched_tokens - decode_tokens - sum(sizes)
    reserve = reserve_of(workload) if lane.running.sequences else 0
    if head.host_blocks is not None:
        return budget > 0 and blocks.blocks_for(head.num_tokens) + reserve <= blocks.num_free_blocks
    match = blocks.match(head)
    if options.admission == "first_chunk" and options.enable_prefix_caching and num_decodes:
        return False  # a decode may have evicted a cached block of the head, so that its first chunk starts earlier
    if num_decodes and options.policy not in ("mixed", "admission_order"):
        match = NO_MATCH  # what these decodes fill can be found from the next step on
    wanted = head.num_tokens - match.num_cached_tokens
    if options.long_prefill_token_threshold:
        wanted = min(wanted, options.long_prefill_token_threshold)
    may_cut = options.enable_chunked_prefill and (options.policy in ("mixed", "admission_order") or not sizes)
    num_tokens = min(wanted, budget)
    if num_tokens <= 0 or (wanted > budget and not may_cut):
        return False
    if options.max_padding is not None and sizes:
        padded = max(*sizes, num_tokens) * (len(sizes) + 1)
        if padded > workload.max_num_batched_tokens or padded - sum(sizes) - num_tokens > options.max_padding:
            return False
    checked = head.num_tokens if options.admission == "full_prompt" else match.num_cached_tokens + num_tokens
    return blocks.blocks_needed(head, match, checked) + reserve <= blocks.num_free_blocks
