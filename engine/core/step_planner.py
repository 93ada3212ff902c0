"""The building blocks that policies compose steps from: decodes, chunks of prompts, admissions, and who gives way."""

from __future__ import annotations

from collections import abc
from typing import Literal

from engine.core import beams
from engine.core.giving_way import GivingWay
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.lower_tiers import match_below
from engine.core.kv.prefix_match import PrefixMatch
from engine.core.limits import Limits
from engine.core.parking import Parking
from engine.core.plan import StepDraft, make_prefill_chunk
from engine.core.preemption import Preemption
from engine.core.running_set import RunningSet
from engine.core.sequence import Sequence
from engine.core.supply import suppliers
from engine.core.waiting_queue import WaitingQueue

Cut = Literal["any", "first", "never"]
"""Which prompts may be cut to what the token budget leaves: any, only the first of a step, or none."""

NO_CHUNKS: abc.Mapping[Sequence, int] = {}


class StepPlanner(GivingWay):
    """Fills the step drafts of one lane out of the waiting and the running sequences, within the limits."""

    def __init__(
        self, blocks: BlockManager, waiting: WaitingQueue, running: RunningSet, preemption: Preemption, limits: Limits
    ) -> None:
        super().__init__(blocks, waiting, running, preemption)
        self.limits = limits
        self.max_num_batched_tokens = limits.max_num_batched_tokens
        self._offload = blocks.offload
        self._parking = Parking(blocks, waiting, running, limits)

    def decode(self, draft: StepDraft) -> None:
        """Let every decoding sequence compute one token, preempting until the blocks for that are there."""
        running, blocks = self.running, self._blocks
        if running.forked or running.decodes.num_blocks_due() > blocks.num_free_blocks:
            while (shortage := self.num_blocks_due() - blocks.num_free_blocks) > 0:
                if not self.reclaim(shortage):
                    self._preempt_one(draft, self.candidates())
        self.plan_decodes(draft)

    def num_blocks_due(self) -> int:
        """Blocks that the decodes must get before they can compute a token."""
        running = self.running
        num_due = running.decodes.num_blocks_due()
        return num_due + running.num_shared_blocks() if running.forked else num_due

    def plan_decodes(self, draft: StepDraft, chunks: abc.Mapping[Sequence, int] = NO_CHUNKS) -> None:
        """Let every decoding sequence compute one token; the blocks for that must be free.

        `chunks` are cut prompts that go on in the same step, which have the blocks for it, and how many tokens each
        computes: the blocks that they fill are registered together with those of the decodes, in order of admission.
        """
        running = self.running
        decodes = running.decodes
        if running.forked:
            draft.transfers += running.unshare()
        draft.num_decodes = len(decodes.sequences)
        growth = decodes.grow(0, self._blocks)
        if growth.blocks:
            draft.growth.append(growth)
        if decodes.findable:
            # With nothing under way all tokens are known, so there is nothing to lag behind.
            ahead = 0 if running.flights else running.lag
            if chunks:
                self._register_in_order(ahead, chunks)
            else:
                running.register_filled(ahead)
            self.waiting.look_for_supply()

    def continue_prefills(self, draft: StepDraft, budget: int) -> int:
        """Go on with prompts that were cut, within `budget` tokens; returns what is left of it."""
        unplanned = self.running.prefilling
        if not unplanned:
            return budget
        unplanned = unplanned.copy()
        while unplanned and budget > 0:
            sequence = next(iter(unplanned))
            start = sequence.num_computed_tokens
            num_tokens = self.chunk_tokens(sequence.num_tokens - start, budget)
            if self.limits.max_padding is not None and self._pads_too_much(draft, num_tokens):
                break
            if self._make_room(draft, sequence, start + num_tokens, unplanned):
                del unplanned[sequence]
                self.plan_chunk(draft, sequence, num_tokens)
                budget -= num_tokens
        return budget

    def admit(self, draft: StepDraft, budget: int, *, cut: Cut) -> None:
        """Admit from the head of the queue while seats, blocks and `budget` tokens last."""
        waiting, running, limits, blocks, offload = self.waiting, self.running, self.limits, self._blocks, self._offload
        if not limits.cuts_prompts:
            cut = "never"
        while budget > 0 and (sequence := waiting.candidate) is not None:
            if running.num_seats + sequence.num_forks >= limits.max_num_seqs:
                return
            if sequence.host_blocks is not None:
                if not self._parking.swap_in(draft, sequence):
                    return
                continue
            match = blocks.match(sequence) if offload is None else self._match(sequence)
            is_parked = offload is not None and offload.must_wait(match)
            if is_parked and self._parking.load(draft, sequence, match, budget):
                continue
            num_tokens = 0 if is_parked else self._admissible_tokens(draft, sequence, match, budget, cut)
            if not num_tokens:
                if waiting.holders and self._others_give_up(sequence):
                    continue
                return
            waiting.pop()
            num_held = match.num_cached_tokens + num_tokens if limits.allocates_chunks else sequence.num_tokens
            draft.transfers += blocks.admit(sequence, match, num_held)
            running.start(sequence, match, draft.now)
            draft.admitted.append(sequence)
            if sequence.request.num_common_blocks is not None:
                draft.admitted += beams.seat(running, blocks, sequence)
            self.plan_chunk(draft, sequence, num_tokens)
            budget -= num_tokens

    def _match(self, sequence: Sequence) -> PrefixMatch:
        """What need not be computed of a waiting sequence, wherever it is."""
        match = self._blocks.match(sequence)
        return match if self._offload is None else match_below(self._blocks, sequence, match)

    def chunk_tokens(self, left: int, budget: int) -> int:
        """Tokens of the next chunk of a prompt with `left` to compute, within the budget and the limit of a chunk."""
        most = self.limits.max_chunk_tokens
        if most and most < left:
            left = most
        return left if left < budget else budget

    def plan_chunk(self, draft: StepDraft, sequence: Sequence, num_tokens: int) -> None:
        """Let the step compute the next `num_tokens` tokens of a prompt, for which it has the blocks."""
        start = sequence.num_computed_tokens
        if start < sequence.num_lost_tokens:
            sequence.num_recomputed_tokens += min(num_tokens, sequence.num_lost_tokens - start)
        end = start + num_tokens
        draft.prefills.append(make_prefill_chunk((sequence, start, num_tokens, end == sequence.num_tokens)))
        if sequence.has_content:
            self._blocks.register(sequence, end)

    @property
    def num_kept_blocks(self) -> int:
        """Free blocks that an admission leaves to those that run."""
        return self.limits.watermark_blocks if self.running.sequences else 0

    def needs(self, sequence: Sequence, budget: int) -> tuple[int, int]:
        """Tokens that a waiting sequence wants to compute first, and free blocks that its admission takes."""
        if sequence.host_blocks is not None:
            return 0, self._blocks.blocks_for(sequence.num_tokens) + beams.missing_blocks(self._blocks, sequence)
        match = self._match(sequence)
        wanted = self.chunk_tokens(sequence.num_tokens - match.num_cached_tokens, sequence.num_tokens)
        checked = match.num_cached_tokens + min(wanted, budget)
        is_beam = sequence.request.num_common_blocks is not None
        checked = sequence.num_tokens if self.limits.checks_full_prompt or is_beam else checked
        others = beams.missing_blocks(self._blocks, sequence)
        is_parked = self._offload is not None and self._offload.must_wait(match)
        return 0 if is_parked else wanted, self._blocks.blocks_needed(sequence, match, checked) + others

    def must_copy(self, sequence: Sequence) -> bool:
        """Whether a decoding sequence needs a copy of the block that it writes to, which a fork holds too."""
        return sequence in self.running.forked and self._blocks.must_copy(sequence)

    def missing_blocks(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that a cut prompt lacks to compute its next `num_tokens` tokens."""
        held = len(sequence.block_table)
        return max(0, self._blocks.blocks_for(sequence.num_computed_tokens + num_tokens) - held)

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Give a cut prompt the blocks of its next `num_tokens` tokens; they must be free."""
        self._blocks.extend(sequence, sequence.num_computed_tokens + num_tokens)

    def _register_in_order(self, ahead: int, chunks: abc.Mapping[Sequence, int]) -> None:
        """Register what decodes and `chunks` fill, in order of admission: of equal blocks the first one is found."""
        running = self.running
        filled = dict(running.decodes.filling(ahead - running.lag))
        if not filled:  # the chunks are in order already, and registered as they are planned
            return
        filled |= {s: s.num_computed_tokens + num_tokens for s, num_tokens in chunks.items() if s.has_content}
        for sequence in running.sequences:
            if sequence in filled:
                self._blocks.register(sequence, filled[sequence])

    def _admissible_tokens(
        self, draft: StepDraft, sequence: Sequence, match: PrefixMatch, budget: int, cut: Cut
    ) -> int:
        """Tokens that the head of the queue may compute in this step; 0 if it must wait."""
        limits, blocks = self.limits, self._blocks
        length = sequence.num_tokens
        wanted = self.chunk_tokens(length - match.num_cached_tokens, length)
        num_tokens = wanted if wanted < budget else budget
        if wanted > budget and (cut == "never" or cut == "first" and draft.prefills):
            return 0
        if limits.max_padding is not None and self._pads_too_much(draft, num_tokens):
            return 0
        is_beam = sequence.request.num_common_blocks is not None
        checked = length if limits.checks_full_prompt or is_beam else match.num_cached_tokens + num_tokens
        needed = blocks.blocks_needed(sequence, match, checked)
        needed += beams.missing_blocks(blocks, sequence) if is_beam else 0
        if limits.watermark_blocks:
            needed += self.num_kept_blocks
        if needed > blocks.num_free_blocks:
            num_matched = match.num_kept + len(match.blocks)
            self.waiting.block_head(num_matched, suppliers(self.running, sequence, num_matched, blocks))
            return 0
        return num_tokens

    def _pads_too_much(self, draft: StepDraft, num_tokens: int) -> bool:
        """Whether one more prompt chunk, padded with those of the draft, would bring the step over a limit."""
        if not draft.prefills:
            return False
        return self.limits.pads_too_much((chunk.num_tokens for chunk in draft.prefills), num_tokens)

    def _make_room(
        self, draft: StepDraft, sequence: Sequence, num_tokens: int, unplanned: dict[Sequence, None]
    ) -> bool:
        """Let `sequence` hold the blocks of `num_tokens` tokens, at the cost of prompts that are still `unplanned`.

        False if it had to give way itself.
        """
        num_missing = self._blocks.blocks_for(num_tokens) - len(sequence.block_table)
        while num_missing > self._blocks.num_free_blocks:
            if self.reclaim(num_missing - self._blocks.num_free_blocks):
                continue
            victim = self._preempt_one(draft, beams.without_readmitted(unplanned))
            del unplanned[victim]
            if victim is sequence:
                return False
        self._blocks.extend(sequence, num_tokens)
        return True
