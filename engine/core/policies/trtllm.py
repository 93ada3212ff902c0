"""The scheduler of TensorRT-LLM: who fits into the memory, then how the tokens of a step are shared out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from engine.core.admission.need import Need
from engine.core.admission.waiting_queue import QueueOrder
from engine.core.kv.trees.stored import StoredManager
from engine.core.plan import StepDraft
from engine.core.planning.asking import WAIT, WAIT_FOR_A_STEP, AdmissionState, Admit, Wait
from engine.core.planning.policy import BasePolicy
from engine.core.planning.step_planner import StepPlanner
from engine.core.running.preemption import Preemption
from engine.core.trtllm.batch_wait import BatchWait
from engine.core.trtllm.capacity import Capacity, Fitting
from engine.core.trtllm.chunking import SHARES
from engine.core.trtllm.options import TrtllmOptions
from engine.core.trtllm.prompts import chunk_sizes, plan_prompts, take_part


class Trtllm(BasePolicy):
    """Prompts and decodes share a step, and prompts get what the decodes leave of its tokens."""

    options_type: ClassVar[type[Any]] = TrtllmOptions
    chooses_victims = True
    needs: ClassVar[Mapping[str, object]] = {
        "eviction": "stored", "allocation": "prompt", "admission": "full_prompt", "preemption": "recompute",
        "max_padding": None, "long_prefill_token_threshold": 0, "queue": "fcfs",
    }  # fmt: skip

    def __init__(self, order: QueueOrder, preemption: Preemption, options: TrtllmOptions) -> None:
        super().__init__(order, preemption, options)
        self._policy = options.capacity_scheduler_policy
        self.never_recomputes = self._policy != "max_utilization"
        self._share = SHARES[options.context_chunking_policy]
        self._wait = BatchWait(options.batch_wait_timeout_iters, options.batch_wait_max_tokens_ratio)
        self._may_change = False  # whether somebody may enter the next step though nothing is released

    def admit(self, need: Need, state: AdmissionState) -> Admit | Wait:
        """For the horizon only: who has no room in the memory has none before something is released."""
        return WAIT_FOR_A_STEP if self._may_change else WAIT

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        blocks, running = planner.admission.blocks, planner.running
        assert isinstance(blocks, StoredManager)
        fitting = self._fitting(Capacity(planner, blocks))
        for victim in fitting.victims:
            planner.preempt(draft, victim)
        part = take_part(planner, fitting)
        sizes = chunk_sizes(planner, blocks, part, self._share)
        num_prompt_tokens = sum(max(1, part.prompts[each].cost(size)) for each, size in sizes.items() if size)
        if self._wait.holds_back(num_prompt_tokens, part.num_decodes, planner.max_num_batched_tokens):
            sizes, fitting.may_change, draft.is_single = {}, True, bool(running.prefilling)
        is_complete = plan_prompts(planner, draft, blocks, sizes, part.budget)
        self._may_change = fitting.may_change or not is_complete or bool(fitting.victims)
        if running.decodes.sequences:
            planner.plan_decodes(draft)

    def _fitting(self, capacity: Capacity) -> Fitting:
        if self._policy == "max_utilization":
            return capacity.fit_the_step()
        return capacity.fit_to_the_end(is_static=self._policy == "static_batch")


POLICY = Trtllm
