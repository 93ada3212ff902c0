"""The building blocks that policies compose steps from: decodes, chunks of prompts, admissions, and who gives way."""

from __future__ import annotations

from collections import abc
from typing import Literal

from engine.core.admission.limits import Limits
from engine.core.admission.need import Need
from engine.core.admission.waiting_queue import WaitingQueue
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.prefix_match import PrefixMatch
from engine.core.plan import PrefillChunk, StepDraft
from engine.core.planning.asking import Admission, AdmissionRule, Wait
from engine.core.planning.parking import Parking
from engine.core.running.forks import num_shared_blocks, unshare
from engine.core.running.giving_way import GivingWay
from engine.core.running.preemption import Preemption
from engine.core.running.registering import filled, register_filled
from engine.core.running.running_set import RunningSet
from engine.core.sequence import Sequence

Cut = Literal["any", "first", "never"]
"""Which prompts may be cut to what the token budget leaves: any, only the first of a step, or none."""

NO_CHUNKS: abc.Mapping[Sequence, int] = {}


class StepPlanner(GivingWay):
    """Fills the step drafts of one lane out of the waiting and the running sequences, within the limits.

    Attributes:
        longest: the number of tokens that no sequence can exceed.
        bounds_chunks: whether prompt chunks have a bound of their own.
    """

    def __init__(
        self,
        blocks: BlockManager,
        waiting: WaitingQueue,
        running: RunningSet,
        limits: Limits,
        preemption: Preemption,
        admit: AdmissionRule,
        longest: int,
    ) -> None:
        super().__init__(blocks, waiting, running, preemption)
        self.limits = self._limits = limits
        self.max_num_batched_tokens = limits.max_num_batched_tokens
        self.longest = longest
        self.bounds_chunks = limits.max_chunk_tokens > 0
        self.chunk_tokens = limits.chunk_tokens
        self.admission = Admission(admit, blocks, waiting, running, limits)
        self._parking = Parking(blocks, running, limits)

    def bound_chunks(self, *, is_alone: bool) -> None:
        """Let chunks have a bound of their own only where a request is not alone."""
        self.limits = self._limits.without_chunk_bound() if is_alone else self._limits
        self.chunk_tokens = self.limits.chunk_tokens
        self.admission.bind(self.limits)

    def decode_and_prefill(self, draft: StepDraft) -> None:
        """All decodes, then prompt chunks in what the token budget leaves; nobody enters a step that preempts."""
        self.decode(draft)
        budget = self.max_num_batched_tokens - self.running.decodes.num_step_tokens
        if self.running.prefilling:
            budget = self.continue_prefills(draft, budget)
        if not draft.is_starved:
            self.admit(draft, budget, cut="any")

    def decode(self, draft: StepDraft) -> None:
        """Let every decoding sequence compute one token, preempting until the blocks for that are there."""
        running, blocks = self.running, self.blocks
        if running.forked or running.decodes.num_blocks_due() > blocks.num_free_blocks:
            while (shortage := self.num_blocks_due() - blocks.num_free_blocks) > 0:
                if not self.reclaim(shortage):
                    self._preempt_one(draft, self.candidates())
        self.plan_decodes(draft)

    def num_blocks_due(self) -> int:
        """Blocks that the decodes must get before they can compute a token."""
        running = self.running
        num_due = running.decodes.num_blocks_due()
        return num_due + num_shared_blocks(running, self.blocks) if running.forked else num_due

    def plan_decodes(self, draft: StepDraft, chunks: abc.Mapping[Sequence, int] = NO_CHUNKS) -> None:
        """Let every decoding sequence compute one token; the blocks for that must be free.

        `chunks` are cut prompts that go on in the same step, which have the blocks for it, and how many tokens each
        computes: the blocks that they fill are registered together with those of the decodes, in order of admission.
        """
        running = self.running
        decodes = running.decodes
        if running.forked:
            draft.transfers += unshare(running, self.blocks)
        draft.num_decodes = len(decodes.sequences)
        growth = decodes.grow(0, self.blocks)
        if growth.blocks:
            draft.growth.append(growth)
        if decodes.findable:
            # With nothing under way all tokens are known, so there is nothing to lag behind.
            ahead = 0 if running.flights else running.lag
            if chunks:
                self._register_in_order(ahead, chunks)
            else:
                register_filled(running, self.blocks, ahead)
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
        """Admit from the head of the queue while seats, `budget` tokens and the policy's rule let somebody enter."""
        waiting, limits, admission = self.waiting, self.limits, self.admission
        if not limits.cuts_prompts:
            cut = "never"
        while budget > 0 and (sequence := waiting.candidate) is not None and (free_seats := admission.free_seats) > 0:
            need = Need(sequence, budget, admission.look)
            may_cut = cut == "any" or cut == "first" and not draft.prefills
            state = admission.state(draft.now, budget, may_cut, free_seats)
            answer = admission.admit(need, state)
            if isinstance(answer, Wait):
                admission.hold(need, state, answer)
                draft.wait_until = answer.until
                if waiting.holders and self._others_give_up(sequence):
                    continue
                return
            if not need.is_seen:
                admission.look(need)
            if need.is_parked:
                self._parking.admit(draft, waiting.pop(), need.match)
                continue
            num_tokens, match = answer.num_tokens, need.match
            if limits.max_padding is not None and self._pads_too_much(draft, num_tokens):
                return
            self.start(draft, waiting.pop(), match, num_tokens, need.padding)
            budget -= num_tokens

    def start(
        self, draft: StepDraft, sequence: Sequence, match: PrefixMatch, num_tokens: int, padding: int = 0
    ) -> None:
        """Admit `sequence` to the step with its first chunk, `padding` tokens of it added."""
        num_held = match.num_cached_tokens + num_tokens if self.limits.allocates_chunks else sequence.num_tokens
        if padding:
            num_held = sequence.num_tokens + padding
            draft.padded.append(sequence)
        draft.transfers += self.blocks.admit(sequence, match, num_held)
        self.running.start(sequence, match, draft.now)
        draft.admitted.append(sequence)
        self.plan_chunk(draft, sequence, num_tokens - padding)

    def plan_chunk(self, draft: StepDraft, sequence: Sequence, num_tokens: int) -> None:
        """Let the step compute the next `num_tokens` tokens of a prompt, for which it has the blocks."""
        start = sequence.num_computed_tokens
        if start < sequence.num_lost_tokens:
            sequence.num_recomputed_tokens += min(num_tokens, sequence.num_lost_tokens - start)
        end = start + num_tokens
        draft.prefills.append(PrefillChunk(sequence, start, num_tokens, end == sequence.num_tokens))
        if sequence.has_content:
            self.blocks.announce(sequence, end)

    def set_aside(self, num_blocks: int) -> list[int]:
        """Take blocks for one that is served, before the next victim frees its own; `put_back` before they are used."""
        return self.blocks.take(num_blocks) if num_blocks else []

    def put_back(self, aside: list[int]) -> None:
        if aside:
            self.blocks.pool.give_back(aside)

    def take_back(self, victim: Sequence, aside: list[int]) -> None:
        """Let go of the blocks that were set aside for one that gives way; with a connector they go with its others."""
        if self.blocks.connector is None:
            self.put_back(aside)
        else:
            victim.block_table += aside

    def must_copy(self, sequence: Sequence) -> bool:
        """Whether a decoding sequence needs a copy of the block that it writes to, which a fork holds too."""
        return sequence in self.running.forked and self.blocks.must_copy(sequence)

    def missing_blocks(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that a cut prompt lacks to compute its next `num_tokens` tokens."""
        held = len(sequence.block_table)
        return max(0, self.blocks.blocks_for(sequence.num_computed_tokens + num_tokens) - held)

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Give a cut prompt the blocks of its next `num_tokens` tokens; they must be free."""
        self.blocks.extend(sequence, sequence.num_computed_tokens + num_tokens)

    def _register_in_order(self, ahead: int, chunks: abc.Mapping[Sequence, int]) -> None:
        """Register what decodes and `chunks` fill, in order of admission: of equal blocks the first one is found."""
        full = dict(filled(self.running, ahead))
        if not full:  # the chunks are in order already, and registered as they are planned
            return
        full |= {s: s.num_computed_tokens + num_tokens for s, num_tokens in chunks.items() if s.has_content}
        for sequence in self.running.sequences:
            if sequence in full:
                self.blocks.announce(sequence, full[sequence])

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
        num_missing = self.blocks.blocks_for(num_tokens) - len(sequence.block_table)
        while num_missing > self.blocks.num_free_blocks:
            if self.reclaim(num_missing - self.blocks.num_free_blocks):
                continue
            victim = self._preempt_one(draft, unplanned)
            del unplanned[victim]
            if victim is sequence:
                return False
        self.blocks.extend(sequence, num_tokens)
        return True
