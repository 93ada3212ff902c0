"""The scheduler of TensorRT-LLM: who fits into the memory, then how the tokens of a step are shared out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from engine.core.admission.need import Need
from engine.core.admission.waiting_queue import QueueOrder
from engine.core.kv.stored import StoredManager
from engine.core.plan import StepDraft
from engine.core.planning.asking import WAIT, WAIT_FOR_A_STEP, AdmissionState, Admit, Wait
from engine.core.planning.policy import BasePolicy
from engine.core.planning.step_planner import StepPlanner
from engine.core.running.preemption import Preemption
from engine.core.trtllm.batch_wait import BatchWait
from engine.core.trtllm.capacity import Capacity, Fitting
from engine.core.trtllm.chunking import SHARES
from engine.core.trtllm.prompts import chunk_sizes, plan_prompts, take_part

CAPACITY_POLICIES = ("guaranteed_no_evict", "max_utilization", "static_batch")


@dataclass(frozen=True)
class TrtllmOptions:
    """Settings of `policy=trtllm`, by the names that TensorRT-LLM gives them.

    Attributes:
        capacity_scheduler_policy: who fits into the memory: guaranteed_no_evict those for whom there is room until they
            have generated all that they may, so that nobody is paused; max_utilization those who have blocks for the
            next step, and whoever came last is paused when these run out; static_batch as guaranteed_no_evict, but
            prompts are computed only while nobody decodes.
        context_chunking_policy: who gets the tokens of a step that has not enough for all prompts:
            first_come_first_served each in turn all that is left, equal_progress all the same.
        batch_wait_timeout_iters: for how many steps prompts wait for more of them while others decode.
        batch_wait_max_tokens_ratio: share of `max_num_batched_tokens` from which a step is worth its prompts, so that
            they wait no longer; 0: they never wait.
    """

    capacity_scheduler_policy: str = "guaranteed_no_evict"
    context_chunking_policy: str = "first_come_first_served"
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0.0

    def __post_init__(self) -> None:
        for name, names in (("capacity_scheduler_policy", CAPACITY_POLICIES), ("context_chunking_policy", SHARES)):
            if (value := getattr(self, name)) not in names:
                raise ValueError(f"{name}={value!r}: choose one of {', '.join(names)}")
        if self.batch_wait_timeout_iters < 0:
            raise ValueError(f"batch_wait_timeout_iters={self.batch_wait_timeout_iters}: must be 0 or more")
        if not 0 <= self.batch_wait_max_tokens_ratio <= 1:
            raise ValueError(f"batch_wait_max_tokens_ratio={self.batch_wait_max_tokens_ratio}: must be within 0 and 1")


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
        num_prompt_tokens = sum(each.num_tokens for each, size in sizes.items() if size)
        if self._wait.holds_back(num_prompt_tokens, part.num_decodes, planner.max_num_batched_tokens):
            sizes, fitting.may_change = {}, True
        is_complete = plan_prompts(planner, draft, blocks, sizes, part.budget)
        self._may_change = fitting.may_change or not is_complete or bool(fitting.victims)
        if running.decodes.sequences:
            planner.plan_decodes(draft)

    def _fitting(self, capacity: Capacity) -> Fitting:
        if self._policy == "max_utilization":
            return capacity.fit_the_step()
        return capacity.fit_to_the_end(is_static=self._policy == "static_batch")


POLICY = Trtllm
