"""Prompts before decodes, never both in a step, as in early vLLM and nano-vllm."""

from __future__ import annotations

from engine.core.plan import StepDraft
from engine.core.planning.policy import BasePolicy
from engine.core.planning.step_planner import StepPlanner


class PrefillFirst(BasePolicy):
    """A step is all prefill or all decode, and prompts go first. Only the first prompt of a step is ever cut."""

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        budget = planner.continue_prefills(draft, planner.max_num_batched_tokens)
        if not draft.is_starved:
            planner.admit(draft, budget, cut="first")
        if not draft.prefills:
            planner.decode(draft)


POLICY = PrefillFirst
