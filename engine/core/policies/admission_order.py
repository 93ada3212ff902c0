"""Chunked prefill in order of admission, decodes and prompts alike: the loop of vLLM's scheduler, step by step.

It differs from `mixed` only when blocks run out: a prompt that was admitted before a decode takes its blocks first.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.admission.need import Padding
from engine.core.admission.waiting_queue import QueueOrder
from engine.core.plan import StepDraft
from engine.core.planning.in_admission_order import plan_running
from engine.core.planning.offloading.loading import admit_or_load
from engine.core.planning.policy import BasePolicy
from engine.core.planning.step_planner import StepPlanner
from engine.core.running.preemption import Preemption

PADDINGS = ("never", "or_waits", "with_decodes", "always")


@dataclass(frozen=True)
class AdmissionOrderOptions:
    """What differs between versions of vLLM; the defaults are those of 0.19, the others those of 0.33.

    Attributes:
        cuts_alone: `long_prefill_token_threshold` holds for a request that is alone, too.
        ends_with_giving_way: a sequence that gives way itself ends the step: those after it sit it out.
        pads_admissions: with drafts, whether an admission that has one token to compute is padded to the tokens of a
            decode, which CUDA graphs of equal decodes need: "never"; "or_waits" while decodes and no prompts run, and
            where the longest sequence has no room for that it waits; "with_decodes" likewise, but it does not wait;
            "always" also beside no decodes, if a part of its prompt is cached.
        finds_verified: what the drafts of a step brought can be found when it has run, not only when the next one is
            planned. Without `async_scheduling`, with which it can be.
    """

    cuts_alone: bool = True
    ends_with_giving_way: bool = True
    pads_admissions: str = "never"
    finds_verified: bool = False

    def __post_init__(self) -> None:
        if self.pads_admissions not in PADDINGS:
            raise ValueError(f"pads_admissions={self.pads_admissions!r}: must be one of {', '.join(PADDINGS)}")


class AdmissionOrder(BasePolicy):
    """Serves the running sequences in the order of their admission; nobody is admitted in a step that preempts."""

    options_type = AdmissionOrderOptions

    def __init__(self, order: QueueOrder, preemption: Preemption, options: AdmissionOrderOptions) -> None:
        super().__init__(order, preemption, options)
        self._options = options
        self.finds_verified = options.finds_verified
        self._pads = options.pads_admissions != "never"

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        if planner.bounds_chunks and not self._options.cuts_alone:
            planner.bound_chunks(is_alone=len(planner.running.sequences) + len(planner.waiting) <= 1)
        budget = plan_running(planner, draft, ends=self._options.ends_with_giving_way)
        if not draft.is_starved:
            if self._pads and planner.running.decodes.tokens_per_decode > 1:
                planner.admission.needs.padding = self._padding(planner, draft)
            if planner.blocks.connector is not None:
                admit_or_load(planner, draft, budget)
            else:
                planner.admit(draft, budget, cut="any")

    def _padding(self, planner: StepPlanner, draft: StepDraft) -> Padding | None:
        """How admissions are padded beside the decodes and prompts of `draft`, if at all."""
        num_drafts, rule = planner.running.decodes.tokens_per_decode - 1, self._options.pads_admissions
        if draft.prefills or not (draft.num_decodes or rule == "always"):
            return None
        return Padding(num_drafts, planner.longest, draft.num_decodes > 0, rule == "or_waits")


POLICY = AdmissionOrder
