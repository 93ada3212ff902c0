"""Chunked prefill in order of admission, decodes and prompts alike: the loop of vLLM's scheduler, step by step.

It differs from `mixed` only when blocks run out: a prompt that was admitted before a decode takes its blocks first.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.admission.waiting_queue import QueueOrder
from engine.core.plan import StepDraft
from engine.core.planning.policy import BasePolicy
from engine.core.planning.step_planner import StepPlanner
from engine.core.running.preemption import Preemption
from engine.core.sequence import Sequence


@dataclass(frozen=True)
class AdmissionOrderOptions:
    """What differs between versions of vLLM; the defaults are those of 0.19, the others those of 0.33.

    Attributes:
        cuts_alone: `long_prefill_token_threshold` holds for a request that is alone, too.
        ends_with_giving_way: a sequence that gives way itself ends the step: those after it sit it out.
    """

    cuts_alone: bool = True
    ends_with_giving_way: bool = True


class AdmissionOrder(BasePolicy):
    """Serves the running sequences in the order of their admission; nobody is admitted in a step that preempts."""

    options_type = AdmissionOrderOptions

    def __init__(self, order: QueueOrder, preemption: Preemption, options: AdmissionOrderOptions) -> None:
        super().__init__(order, preemption, options)
        self._options = options

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        if not self._options.cuts_alone:
            planner.bound_chunks(is_alone=len(planner.running.sequences) + len(planner.waiting) <= 1)
        chunks, budget = self._chunks(planner)
        num_blocks = planner.num_blocks_due() + sum(planner.missing_blocks(s, n) for s, n in chunks.items())
        if num_blocks > planner.num_free_blocks:
            chunks, budget = _ration(planner, draft, ends=self._options.ends_with_giving_way)
        for sequence, num_tokens in chunks.items():
            planner.extend(sequence, num_tokens)
        planner.plan_decodes(draft, chunks)
        for sequence, num_tokens in chunks.items():
            planner.plan_chunk(draft, sequence, num_tokens)
        if not draft.is_starved:
            planner.admit(draft, budget, cut="any")

    def _chunks(self, planner: StepPlanner) -> tuple[dict[Sequence, int], int]:
        """Tokens of each cut prompt if blocks do not run out, and what is left of the budget."""
        budget = planner.max_num_batched_tokens - planner.running.decodes.num_step_tokens
        chunks = {}
        for sequence in planner.running.prefilling:
            if budget <= 0:
                break
            chunks[sequence] = planner.chunk_tokens(sequence.num_tokens - sequence.num_computed_tokens, budget)
            budget -= chunks[sequence]
        return chunks, budget


def _ration(planner: StepPlanner, draft: StepDraft, *, ends: bool) -> tuple[dict[Sequence, int], int]:
    """Hand out blocks and tokens one sequence after the other, and preempt for each that lacks blocks.

    A victim may have been served already: it gives back its share. If a sequence must give way itself, all after it sit
    this step out if it `ends` with that. Returns the tokens of each cut prompt and what is left of the budget.
    """
    running, budget = planner.running, planner.max_num_batched_tokens
    due = running.decodes.blocks_due()
    served: dict[Sequence, tuple[int, int]] = {}  # tokens and blocks
    num_reserved, is_over = 0, False
    for sequence in list(running.sequences):
        decodes = sequence in running.decodes.sequences
        if sequence not in running.sequences or not decodes and sequence not in running.prefilling:
            continue
        if is_over or budget <= 0:
            if decodes:
                running.pause(sequence)
            continue
        if decodes:
            num_tokens = 1 + running.decodes.num_drafts_of(sequence)
            num_blocks = due.get(sequence, 0) + planner.must_copy(sequence)
        else:
            num_tokens = planner.chunk_tokens(sequence.num_tokens - sequence.num_computed_tokens, budget)
            num_blocks = planner.missing_blocks(sequence, num_tokens)
        gave_way = False
        while num_reserved + num_blocks > planner.num_free_blocks and not gave_way:
            if planner.reclaim(num_reserved + num_blocks - planner.num_free_blocks):
                continue
            victim = planner.choose_victim()
            if victim in served:
                running.register_known(victim)
                given_back = served.pop(victim)
                budget += given_back[0]
                num_reserved -= given_back[1]
            planner.preempt(draft, victim)
            gave_way = victim is sequence
        is_over = ends and gave_way
        if not gave_way:
            served[sequence] = num_tokens, num_blocks
            budget -= num_tokens
            num_reserved += num_blocks
    draft.paused += running.paused
    return {s: tokens for s, (tokens, _) in served.items() if s in running.prefilling}, budget


POLICY = AdmissionOrder
