"""That a plan wastes nothing: blocks are given up in order, nothing is copied twice, and no token is left over."""

from __future__ import annotations

from collections.abc import Callable

from engine.core.kv.tier import DEVICE, HOST, Tier
from engine.core.plan import StepDraft, StepPlan
from engine.core.planning.step_planner import StepPlanner
from engine.core.scheduler import Scheduler
from tests.engine.fuzz.workload import Workload

Compose = Callable[[StepPlanner, StepDraft], None]


def watched(compose: Compose) -> Compose:
    """A policy's `compose` that proves what it makes of a step."""

    def checked(planner: StepPlanner, draft: StepDraft) -> None:
        compose(planner, draft)
        assert not (draft.is_starved and draft.admitted), "somebody enters a step in which others had to give way"

    return checked


def check_chunks(workload: Workload, scheduler: Scheduler, plan: StepPlan) -> None:
    """Prove that prompts are cut where that is allowed, and computed as far as they are known."""
    options = workload.options
    most: int | None = options.long_prefill_token_threshold or None
    is_alone = len(scheduler._lanes[plan.lane].sequences) + scheduler.num_waiting <= 1
    if is_alone and not options.options.get("cuts_alone", True):
        most = None
        assert all(chunk.is_last or chunk.num_tokens == workload.max_num_batched_tokens for chunk in plan.prefills)
    for sequence, start, num_tokens, is_last in plan.prefills:
        assert 0 < num_tokens <= (most or num_tokens)
        if sequence in plan.admitted and not is_last:
            assert options.enable_chunked_prefill or num_tokens == most, "a prompt is cut"
        if sequence.token_ids is not None:
            assert start + num_tokens <= len(sequence.token_ids), "a token is computed before it comes"


class Thrift:
    """What there is to give up when a plan is made."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holders = {s: (place, len(s.block_table)) for s, place in scheduler.waiting.holders.items()}
        self._padding = [[*lane.padding] for lane in scheduler._lanes]

    def check(self, workload: Workload, plan: StepPlan | None) -> None:
        """Prove it of the plan that was made since."""
        self._check_holders(plan)
        if not self._scheduler.plans_ahead:
            for lane, before in zip(self._scheduler._lanes, self._padding, strict=True):
                assert [*lane.padding] == before[: len(lane.padding)], "an older row of padding goes before a newer one"
        if plan is not None:
            self._check_stores(plan)
            self._check_tokens(workload, plan)

    def _check_holders(self, plan: StepPlan | None) -> None:
        """Of those in the queue that keep blocks, the last gives up all of them before another one does."""
        moved = set() if plan is None else {*plan.admitted, *plan.preempted}
        held = [(place, s, count) for s, (place, count) in self._holders.items() if s not in moved]
        gave_up = [place for place, sequence, count in held if len(sequence.block_table) < count]
        kept = [place for place, sequence, _ in held if sequence.block_table]
        assert not gave_up or not kept or max(kept) <= min(gave_up), "an earlier one gives up blocks before a later one"

    def _check_stores(self, plan: StepPlan) -> None:
        """What goes to the host is lost on the device."""
        offload = self._scheduler.blocks.offload
        if offload is None:
            return
        assert isinstance(host := offload.tiers[0], Tier), "these schedulers share no store"
        hash_of = {each.block: block_hash for block_hash, each in host._cached.items()}
        for transfer in plan.transfers:
            if (transfer.source_tier, transfer.target_tier) == (DEVICE, HOST):
                still = offload.index.find([hash_of[transfer.target]], 1) if transfer.target in hash_of else []
                assert not still or offload.index.is_pending(still[0]), "what the device still has goes to the host"

    def _check_tokens(self, workload: Workload, plan: StepPlan) -> None:
        """Nobody sits a step of `policy=admission_order` out while that has tokens left, unless somebody gave way, or
        drafts under way may bring all of its tokens."""
        running, options = self._scheduler._lanes[plan.lane], workload.options
        if options.policy != "admission_order" or (self._scheduler.plans_ahead and workload.num_drafts):
            return
        served = {chunk.sequence for chunk in plan.prefills}
        sits_out = running.paused or not running.prefilling.keys() <= served
        if sits_out and (not plan.preempted or not options.options.get("ends_with_giving_way", True)):
            num_tokens = workload.num_decode_tokens(plan, self._scheduler.max_model_len)
            num_tokens += sum(chunk.num_tokens for chunk in plan.prefills)
            assert num_tokens == workload.max_num_batched_tokens, "tokens are left for one that sits the step out"
