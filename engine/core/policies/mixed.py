"""Chunked prefill: all decodes, then chunks of prompts in what the token budget leaves."""

from __future__ import annotations

from engine.core.plan import StepDraft
from engine.core.policy import BasePolicy
from engine.core.step_planner import StepPlanner


class Mixed(BasePolicy):
    """All decodes, then prompt chunks in what the token budget leaves; nobody is admitted in a step that preempts."""

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        planner.decode(draft)
        budget = planner.max_num_batched_tokens - draft.num_decodes * planner.running.decodes.tokens_per_decode
        budget = planner.continue_prefills(draft, budget)
        if not draft.is_starved:
            planner.admit(draft, budget, cut="any")


POLICY = Mixed
