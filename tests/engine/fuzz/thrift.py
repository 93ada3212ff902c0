"""That a plan wastes nothing: blocks are given up in order and no more than needed, nothing is copied twice, and no
token is left over."""

from __future__ import annotations

from collections.abc import Callable

from engine.core.block_hashes import BlockHashes
from engine.core.kv.tiers.tier import DEVICE, HOST, Tier
from engine.core.plan import StepDraft, StepPlan
from engine.core.planning.step_planner import Cut
from engine.core.scheduler import Scheduler
from engine.core.sequence import SequenceStatus
from tests.engine.fuzz.workload import Workload


def watched(admit: Callable[..., None]) -> Callable[..., None]:
    """A planner's `admit` that proves that nobody had to give way before in the step."""

    def checked(draft: StepDraft, budget: int, *, cut: Cut) -> None:
        assert not draft.is_starved, "somebody enters a step in which others had to give way"
        admit(draft, budget, cut=cut)

    return checked


def check_chunks(workload: Workload, scheduler: Scheduler, plan: StepPlan) -> None:
    """Prove that prompts are cut where that is allowed, and computed as far as they are known."""
    options = workload.options
    most: int | None = options.long_prefill_token_threshold or None
    is_alone = len(scheduler._lanes[plan.lane].sequences) + scheduler.num_waiting <= 1
    if is_alone and not options.options.get("cuts_alone", True):
        most = None
        assert all(chunk.is_last or chunk.num_tokens == workload.max_num_batched_tokens for chunk in plan.prefills)
    for chunk in plan.prefills:
        sequence, num_tokens = chunk.sequence, chunk.num_tokens
        assert 0 < num_tokens <= (most or num_tokens)
        if sequence in plan.admitted and not chunk.is_last:
            assert options.enable_chunked_prefill or num_tokens == most, "a prompt is cut"
        if sequence.token_ids is not None:
            assert chunk.start + num_tokens <= len(sequence.token_ids), "a token is computed before it comes"


def check_padding(workload: Workload, scheduler: Scheduler, plan: StepPlan, num_late: int, num_late_tokens: int) -> int:
    """Prove that the work of a plan has what the plan computes, and the padding of a batch of fixed shape; of
    `num_late` decodes all tokens are under way already. Returns the padding rows among the decodes."""
    sizes = [chunk.num_tokens for chunk in plan.prefills]
    padded = [max(sizes)] * len(sizes) if workload.pads and sizes else sizes.copy()
    for i, chunk in enumerate(plan.prefills):
        if chunk.sequence in plan.admitted:
            padding = workload.padding(plan, scheduler.max_model_len, chunk.sequence, chunk.start)
            assert padding is not None, "it must wait"
            padded[i] += padding
    expected = [(chunk.start, size, chunk.is_last) for chunk, size in zip(plan.prefills, padded, strict=True)]
    assert [(chunk.start, chunk.num_tokens, chunk.is_last) for chunk in plan.work.chunks] == expected
    assert sum(padded) <= workload.max_num_batched_tokens, "padding exceeds the tokens of a step"
    rows = sum(sequence.status is SequenceStatus.PADDING for sequence in plan.decodes) if plan.num_decodes else 0
    assert plan.num_padding_seqs == rows + num_late
    assert plan.num_padding_tokens == rows + num_late_tokens + sum(padded) - sum(sizes)
    assert not rows or (workload.pads and rows < plan.num_decodes), "a step is all padding"
    return rows


class Thrift:
    """What there is to give up when a plan is made."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holders = {s: (place, len(s.block_table)) for s, place in scheduler.waiting.holders.items()}
        self._padding = [[*lane.padding] for lane in scheduler._lanes]
        self._is_idle = not scheduler.num_running

    def check(self, workload: Workload, plan: StepPlan | None) -> None:
        """Prove it of the plan that was made since."""
        self._check_holders(plan)
        if not self._scheduler.plans_ahead:
            for lane, before in zip(self._scheduler._lanes, self._padding, strict=True):
                assert [*lane.padding] == before[: len(lane.padding)], "an older row of padding goes before a newer one"
        if plan is not None:
            self._check_excess(workload, plan)
            self._check_stores(plan)
            self._check_tokens(workload, plan)

    def _check_holders(self, plan: StepPlan | None) -> None:
        """Of those in the queue that keep blocks, the last gives up all of them before another one does."""
        moved = set() if plan is None else {*plan.admitted, *plan.preempted}
        held = [(place, s, count) for s, (place, count) in self._holders.items() if s not in moved]
        gave_up = [place for place, sequence, count in held if len(sequence.block_table) < count]
        kept = [place for place, sequence, _ in held if sequence.block_table]
        assert not gave_up or not kept or max(kept) <= min(gave_up), "an earlier one gives up blocks before a later one"

    def _check_excess(self, workload: Workload, plan: StepPlan) -> None:
        """Those in the queue that keep blocks give up none that nobody needs, and none for their own admission."""
        blocks, size = self._scheduler.blocks, workload.block_size
        if self._is_idle or workload.options.policy == "priority":
            for chunk in plan.prefills:
                kept = self._holders[chunk.sequence][1] if chunk.sequence in self._holders else 0
                assert chunk.start >= min(kept * size, chunk.sequence.num_tokens - 1), "it gave up blocks for itself"
        gave_up = [s for s, (_, n) in self._holders.items() if s not in plan.admitted and len(s.block_table) < n]
        if not gave_up or plan.preempted or any(self._padding) or workload.num_lanes > 1 or self._scheduler.plans_ahead:
            return  # others gave blocks back, too
        if not plan.admitted:
            assert not blocks.num_free_blocks, "more is given up than a step needs"
        for head in plan.admitted:
            num_kept = self._holders[head][1] if head in self._holders else 0
            num_own = sum(not blocks.pool.is_shared(block) for block in head.block_table)
            if not self._is_idle:
                assert workload.options.policy == "priority" or num_own <= num_kept, "others give up for the queue"
            elif len(plan.admitted) == 1 and not plan.transfers:
                assert blocks.num_free_blocks + num_own <= blocks.blocks_for(head.num_tokens), "more than it needs"

    def _check_stores(self, plan: StepPlan) -> None:
        """What goes to the host is lost on the device."""
        offload = self._scheduler.blocks.offload
        if offload is None or not isinstance(host := offload.tiers[0], Tier):
            return
        hash_of = {each.block: block_hash for block_hash, each in host._cached.items()}
        for transfer in plan.transfers:
            if (transfer.source_tier, transfer.target_tier) == (DEVICE, HOST):
                known = [hash_of[target]] if (target := transfer.target) in hash_of else []
                still = offload.index.find(BlockHashes(known), 0, 1)
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
