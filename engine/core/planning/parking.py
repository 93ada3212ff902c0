"""Admissions of sequences whose KV comes from a tier behind the device or from another server: they are parked until
it is there."""

from __future__ import annotations

from engine.core.admission.limits import Limits
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.lower_tiers import swap_in
from engine.core.kv.prefix_match import PrefixMatch
from engine.core.plan import StepDraft
from engine.core.running.running_set import RunningSet
from engine.core.sequence import Sequence


class Parking:
    """Admits sequences to the parked ones of a lane."""

    def __init__(self, blocks: BlockManager, running: RunningSet, limits: Limits) -> None:
        self._blocks = blocks
        self._running = running
        self._limits = limits

    def admit(self, draft: StepDraft, sequence: Sequence, match: PrefixMatch) -> None:
        """Admit a sequence with hits, or with blocks that are coming for another one; a swapped-out sequence; or one
        whose prompt another server has computed."""
        blocks = self._blocks
        if sequence.host_blocks is not None:
            num_held = self._num_held(sequence, sequence.num_computed_tokens)
            draft.transfers += swap_in(blocks, sequence, num_held)
        elif sequence.request.prefilled_elsewhere:
            num_computed = sequence.num_tokens - 1
            draft.transfers += blocks.admit(sequence, match, self._num_held(sequence, num_computed))
            sequence.set_computed(num_computed)
        else:
            draft.transfers += blocks.admit(sequence, match, self._num_held(sequence, match.num_cached_tokens))
            match.count_for(sequence, blocks.block_size)
        self._running.park(sequence, draft.now)
        draft.admitted.append(sequence)
        draft.parked.append(sequence)

    def _num_held(self, sequence: Sequence, num_computed_tokens: int) -> int:
        """Tokens for which a sequence has blocks as long as these are computed."""
        goes_on_decoding = num_computed_tokens == sequence.num_tokens - 1 and sequence.num_output_tokens > 0
        return num_computed_tokens if goes_on_decoding or self._limits.allocates_chunks else sequence.num_tokens
