"""The building blocks that policies compose steps from: decodes, chunks of prompts, admissions, and who gives way."""

from __future__ import annotations

from engine.core.block_manager import BlockManager
from engine.core.plan import PrefillChunk, StepDraft
from engine.core.policy import VictimRule
from engine.core.running_set import RunningSet
from engine.core.sequence import Sequence
from engine.core.waiting_queue import WaitingQueue


class StepPlanner:
    """Fills step drafts out of the waiting and the running sequences, within the limits.

    Args:
        victim: chooses whom to preempt.
        watermark_blocks: free blocks that an admission leaves while others run.
        allocates_chunks: whether a prompt that is cut gets its blocks chunk by chunk.
        max_padding: for engines that pad the prompts of a step to the longest: tokens of padding that a step may have.
    """

    def __init__(
        self,
        blocks: BlockManager,
        waiting: WaitingQueue,
        running: RunningSet,
        victim: VictimRule,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        watermark_blocks: int,
        allocates_chunks: bool,
        max_padding: int | None = None,
    ) -> None:
        self.max_num_batched_tokens = max_num_batched_tokens
        self._blocks = blocks
        self._waiting = waiting
        self._running = running
        self._victim = victim
        self._max_num_seqs = max_num_seqs
        self._watermark_blocks = watermark_blocks
        self._allocates_chunks = allocates_chunks
        self._max_padding = max_padding
        self._last_victim: Sequence | None = None

    def decode(self, draft: StepDraft) -> None:
        """Let every decoding sequence compute one token, preempting until the blocks for that are there."""
        running = self._running
        while len(due := running.decodes.due()) > self._blocks.num_free_blocks:
            self._preempt_one(draft, running.sequences)
        draft.num_decodes = len(running.decodes)
        if due:
            draft.growth.append(running.grow(0, due))
        if running.decodes.findable:
            running.register_filled(0)
            self._waiting.look_for_supply()

    def continue_prefills(self, draft: StepDraft, budget: int) -> int:
        """Go on with prompts that were cut, within `budget` tokens; returns what is left of it."""
        unplanned = self._running.prefilling
        if not unplanned:
            return budget
        unplanned = unplanned.copy()
        while unplanned and budget > 0:
            sequence = next(iter(unplanned))
            num_tokens = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            if self._make_room(draft, sequence, sequence.num_computed_tokens + num_tokens, unplanned):
                del unplanned[sequence]
                self._plan_chunk(draft, sequence, num_tokens)
                budget -= num_tokens
        return budget

    def admit(self, draft: StepDraft, budget: int, *, cut_any: bool) -> None:
        """Admit from the head of the queue while seats, blocks and `budget` tokens last.

        A prompt that exceeds the budget is cut if `cut_any`, else only as the first of the step.
        """
        blocks, waiting, running = self._blocks, self._waiting, self._running
        seats = running.sequences
        while waiting and not waiting.head_blocked and len(seats) < self._max_num_seqs and budget > 0:
            sequence = waiting.head
            match = blocks.match(sequence)
            left = sequence.num_tokens - match.num_cached_tokens
            if draft.prefills and (left > budget and not cut_any or self._pads_too_much(draft, min(left, budget))):
                return
            reserve = self._watermark_blocks if seats else 0
            if blocks.blocks_needed(match, sequence.num_tokens) + reserve > blocks.num_free_blocks:
                num_matched = len(match.blocks)
                waiting.block_head(num_matched, running.suppliers(sequence, num_matched))
                return
            waiting.pop()
            num_tokens = min(left, budget)
            num_held = match.num_cached_tokens + num_tokens if self._allocates_chunks else sequence.num_tokens
            copy = blocks.admit(sequence, match, num_held)
            if copy:
                draft.copies.append(copy)
            running.start(sequence, match.num_cached_tokens, draft.now)
            draft.admitted.append(sequence)
            self._plan_chunk(draft, sequence, num_tokens)
            budget -= num_tokens

    def _pads_too_much(self, draft: StepDraft, num_tokens: int) -> bool:
        """Whether one more prompt of `num_tokens` tokens would bring the step, padded, over a limit."""
        if self._max_padding is None:
            return False
        sizes = [chunk.num_tokens for chunk in draft.prefills] + [num_tokens]
        padded = max(sizes) * len(sizes)
        return padded > self.max_num_batched_tokens or padded - sum(sizes) > self._max_padding

    def _plan_chunk(self, draft: StepDraft, sequence: Sequence, num_tokens: int) -> None:
        start = sequence.num_computed_tokens
        if start < sequence.num_lost_tokens:
            sequence.num_recomputed_tokens += min(num_tokens, sequence.num_lost_tokens - start)
        draft.prefills.append(PrefillChunk(sequence, start, num_tokens, start + num_tokens == sequence.num_tokens))
        if sequence.has_content:
            self._blocks.register(sequence, start + num_tokens)

    def _make_room(
        self, draft: StepDraft, sequence: Sequence, num_tokens: int, unplanned: dict[Sequence, None]
    ) -> bool:
        """Let `sequence` hold the blocks of `num_tokens` tokens, at the cost of prompts that are still `unplanned`.

        False if it had to give way itself.
        """
        table = sequence.block_table
        while (missing := self._blocks.blocks_for(num_tokens) - len(table)) > self._blocks.num_free_blocks:
            victim = self._preempt_one(draft, unplanned)
            del unplanned[victim]
            if victim is sequence:
                return False
        if missing > 0:
            table.extend(self._blocks.take(missing))
        return True

    def _preempt_one(self, draft: StepDraft, candidates: dict[Sequence, None]) -> Sequence:
        """Take the blocks of one of `candidates`, which are in order of admission."""
        victim = self._victim(reversed(candidates), self._last_victim)
        draft.is_starved = True
        if victim in self._running.ending:
            self._running.release_early(victim)
            return victim
        self._last_victim = victim
        self._running.preempt(victim)
        draft.preempted.append(victim)
        return victim
