"""Admissions of sequences whose KV comes from a tier behind the device: they are parked until it is there."""

from __future__ import annotations

from engine.core import beams
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.lower_tiers import swap_in
from engine.core.kv.prefix_match import PrefixMatch
from engine.core.limits import Limits
from engine.core.plan import StepDraft
from engine.core.running_set import RunningSet
from engine.core.sequence import Sequence
from engine.core.supply import suppliers
from engine.core.waiting_queue import WaitingQueue


class Parking:
    """Admits the head of the queue to the parked sequences of one lane."""

    def __init__(self, blocks: BlockManager, waiting: WaitingQueue, running: RunningSet, limits: Limits) -> None:
        self._blocks = blocks
        self._waiting = waiting
        self._running = running
        self._limits = limits

    def swap_in(self, draft: StepDraft, sequence: Sequence) -> bool:
        """Admit a swapped-out sequence, or all beams of its request; False if it does not fit."""
        needed = self._blocks.blocks_for(sequence.num_tokens) + beams.missing_blocks(self._blocks, sequence)
        if needed + self._reserve() > self._blocks.num_free_blocks:
            self._waiting.block_head(0, [])
            return False
        self._waiting.pop()
        if sequence.request.num_common_blocks is not None:
            draft.transfers += beams.swap_in(self._running, self._blocks, sequence)
            for beam in sequence.request.sequences:
                self._park(draft, beam)
            return True
        num_held = self._num_held(sequence, sequence.num_computed_tokens)
        draft.transfers += swap_in(self._blocks, sequence, num_held)
        self._park(draft, sequence)
        return True

    def load(self, draft: StepDraft, sequence: Sequence, match: PrefixMatch, budget: int) -> bool:
        """Admit a sequence with hits, or with blocks that are coming for another one; False if it does not fit.

        Its first chunk, when they are there, is taken to have up to `budget` tokens.
        """
        blocks, limits, num_cached = self._blocks, self._limits, match.num_cached_tokens
        checked = sequence.num_tokens
        if not limits.checks_full_prompt:
            checked = min(checked, num_cached + min(budget, limits.max_chunk_tokens or budget))
        if blocks.blocks_needed(sequence, match, checked) + self._reserve() > blocks.num_free_blocks:
            num_matched = match.num_kept + len(match.blocks)
            awaited = suppliers(self._running, sequence, num_matched, blocks)
            self._waiting.block_head(num_matched, awaited)
            return False
        self._waiting.pop()
        draft.transfers += blocks.admit(sequence, match, self._num_held(sequence, num_cached))
        match.count_for(sequence, blocks.block_size)
        self._park(draft, sequence)
        return True

    def _reserve(self) -> int:
        return self._limits.watermark_blocks if self._running.sequences else 0

    def _num_held(self, sequence: Sequence, num_computed_tokens: int) -> int:
        """Tokens for which a sequence has blocks as long as these are computed."""
        goes_on_decoding = num_computed_tokens == sequence.num_tokens - 1 and sequence.num_output_tokens > 0
        return num_computed_tokens if goes_on_decoding or self._limits.allocates_chunks else sequence.num_tokens

    def _park(self, draft: StepDraft, sequence: Sequence) -> None:
        self._running.park(sequence, draft.now)
        draft.admitted.append(sequence)
        draft.parked.append(sequence)
