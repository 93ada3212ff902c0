"""The scheduler of SGLang 0.5.23: prompts before decodes, admission by an estimate of what the running requests will
still generate, and retraction when it was too low."""

from __future__ import annotations

from typing import Any, ClassVar

from engine.core.admission.need import Need
from engine.core.admission.waiting_queue import QueueOrder
from engine.core.kv.trees.radix import RadixManager
from engine.core.plan import StepDraft
from engine.core.planning.asking import WAIT, WAIT_FOR_A_STEP, AdmissionState, Admit, Wait
from engine.core.planning.policy import BasePolicy
from engine.core.planning.step_planner import StepPlanner
from engine.core.running.preemption import Preemption
from engine.core.sequence import Sequence
from engine.core.sglang.batch import RunningBatch, num_output_tokens
from engine.core.sglang.budget import MOST_NEW_TOKENS, NewTokenRatio, max_new_tokens
from engine.core.sglang.decoding import decode, mix
from engine.core.sglang.options import SglangOptions
from engine.core.sglang.prompts import plan_prompts
from engine.core.sglang.queue import SglangQueue
from engine.core.sglang.receiving import Receiving


class Sglang(BasePolicy):
    """A step is prompts, or else all decodes, as in the loop of SGLang."""

    options_type: ClassVar[type[Any]] = SglangOptions
    chooses_victims = True
    needs: ClassVar[dict[str, object]] = {
        "eviction": "radix", "allocation": "chunk", "admission": "full_prompt", "preemption": "recompute",
        "max_padding": None, "long_prefill_token_threshold": 0}  # fmt: skip

    def __init__(self, order: QueueOrder, preemption: Preemption, options: SglangOptions) -> None:
        super().__init__(order, preemption, options)
        self._options, self._queue = (
            options,
            SglangQueue(options.schedule_policy, receives_late=options.scheduler_recv_interval > 1),
        )
        self._receiving, self._had_prompts = Receiving(options.scheduler_recv_interval), False
        self._batch = RunningBatch()
        self._ratio = NewTokenRatio(options.schedule_conservativeness)
        self._last: Sequence | None = None  # one of those of the last step

    def make_queue(self) -> SglangQueue:
        return self._queue

    def admit(self, need: Need, state: AdmissionState) -> Admit | Wait:
        """For the horizon only: while the batch is full nobody is looked at."""
        return WAIT if self._batch.is_full and not self._queue.unseen else WAIT_FOR_A_STEP

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        blocks, running, batch = planner.admission.blocks, planner.running, self._batch
        assert isinstance(blocks, RadixManager)
        blocks.keep_spare(0)
        self._ratio.follow(running.num_decode_steps)
        if not running.sequences and self._was_idle():
            self._ratio.reset()
        is_idle, had_prompts = not running.sequences, self._had_prompts
        if self._receiving.is_due(running.num_decode_steps, is_idle=is_idle, had_prompts=had_prompts):
            self._queue.receive()
        batch.follow(running, blocks)
        num_mixed = len(batch.sequences) if self._options.enable_mixed_chunk else 0
        share = 1.0 if self._options.ignore_eos else self._ratio.current
        new = (max_new_tokens(each) - num_output_tokens(running, each) for each in batch.sequences)
        num_reserved = sum(min(number, MOST_NEW_TOKENS) * share for number in new)
        plan_prompts(planner, draft, blocks, batch, self._queue, num_mixed=num_mixed, num_reserved=num_reserved)
        if not draft.prefills:
            decode(planner, draft, blocks, batch, self._ratio)
        elif num_mixed:
            mix(planner, draft, blocks, batch, self._ratio)
        self._had_prompts = bool(draft.prefills)
        self._last = next(iter(batch.joining or batch.sequences), self._last)

    def _was_idle(self) -> bool:
        """Whether nobody was there between the last step and the arrival of those who wait now."""
        end = self._last.request.finish_time if self._last is not None else None
        return end is None or all(each.request.arrival_time > end for each in self._queue)


POLICY = Sglang
