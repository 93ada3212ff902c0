"""What a waiting sequence needs to enter a step: tokens, blocks and seats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from engine.core.admission.limits import Limits
from engine.core.kv.block_manager import BlockManager
from engine.core.kv.lower_tiers import match_below
from engine.core.kv.prefix_match import NO_MATCH, PrefixMatch
from engine.core.sequence import Sequence

Look = Callable[["Need"], None]
"""Computes a need."""
_NEVER_FREE: Final = 1 << 62  # more tokens than any step has


class Padding(NamedTuple):
    """How the admissions of a step that have one token to compute are padded to the tokens of a decode with drafts.

    Attributes:
        num_drafts: tokens that such an admission computes more.
        longest: tokens that a sequence can have; there must be room for the drafts and one more.
        has_decodes: whether there are decodes in the step; if not, only prompts that are cached in part are padded.
        waits: where there is no room for the drafts, it waits; else it is not padded.
    """

    num_drafts: int
    longest: int
    has_decodes: bool
    waits: bool

    def of(self, length: int) -> int:
        """The padding of a prompt with `length` tokens of which one is to be computed."""
        if length == 1 and not self.has_decodes:
            return 0
        if length + self.num_drafts + (not self.waits) <= self.longest:
            return self.num_drafts
        return _NEVER_FREE if self.waits else 0


class Need:
    """What a waiting sequence needs to enter a step.

    All but the seats takes a look into the prefix cache. So it is computed when it is first read, and never for a
    policy that lets the sequence wait for something else.

    Args:
        look: computes it, when it is first read.

    Attributes:
        budget: tokens that the step has left.
        sequence: who wants to enter.
        seats: its own, and those of the sequences that will be forked from it.
        tokens: that it computes first, however few the step has left, with its padding; 0 if it is parked.
        padding: of these, tokens that nobody needs; with padding it is not cut.
        blocks: free blocks that its admission takes, with at most `budget` of these tokens computed.
        is_seen: whether tokens or blocks were read; then there are the next two as well.
        match: what need not be computed.
        is_parked: it is admitted to wait until its KV has come from another tier or another server.
    """

    __slots__ = (
        "_blocks", "_look", "_tokens", "budget", "is_parked", "is_seen", "match", "padding", "seats", "sequence",
    )  # fmt: skip

    _blocks: int
    _tokens: int
    is_parked: bool
    match: PrefixMatch

    def __init__(self, sequence: Sequence, budget: int, look: Look) -> None:
        self.sequence = sequence
        self.seats = 1 + sequence.num_forks
        self.is_seen = False
        self.padding = 0
        self.budget = budget
        self._look = look

    @property
    def tokens(self) -> int:
        if not self.is_seen:
            self._look(self)
        return self._tokens

    @property
    def blocks(self) -> int:
        if not self.is_seen:
            self._look(self)
        return self._blocks

    def add(self, num_blocks: int) -> None:
        """Let it have to leave so many free blocks to others."""
        self._blocks = self.blocks + num_blocks


class Needs:
    """Computes what sequences need to enter a lane with these limits, whose decodes verify at most `num_drafts`."""

    def __init__(self, blocks: BlockManager, limits: Limits, num_drafts: int) -> None:
        self._blocks = blocks
        self._offload = blocks.offload
        self._limits = limits
        self._num_drafts = num_drafts
        self.padding: Padding | None = None  # of the step that is planned

    def look(self, need: Need) -> None:
        """Prefix hits, then the first chunk, then the blocks that must be free for it."""
        sequence, blocks, limits, offload = need.sequence, self._blocks, self._limits, self._offload
        length, is_whole = sequence.num_tokens, limits.checks_full_prompt
        if sequence.host_blocks is not None:
            match, is_parked, is_whole = NO_MATCH, True, True
            # Without room for the drafts of its first step it would give way again before that.
            length = min(length + self._num_drafts, blocks.longest_sequence)
        elif sequence.request.prefilled_elsewhere:
            match, is_parked, is_whole = blocks.match(sequence), True, True
        elif offload is None:
            match, is_parked = blocks.match(sequence), False
        else:
            match = match_below(blocks, sequence, blocks.match(sequence))
            is_parked = offload.must_wait(match)
        self._fill(need, match, length, is_parked, is_whole)

    def fill(self, need: Need, match: PrefixMatch, num_loaded: int, num_reserved: int) -> None:
        """What is needed of a sequence of which `num_loaded` tokens after those of `match` come from the host; if any
        do, it is parked, and `num_reserved` blocks must be left."""
        self._fill(need, match, need.sequence.num_tokens, num_loaded > 0, self._limits.checks_full_prompt)
        if num_loaded:
            num_held = match.num_cached_tokens + num_loaded
            num_needed = self._blocks.blocks_needed(need.sequence, match, num_held) + num_reserved
            whole = need.blocks if self._limits.checks_full_prompt else 0
            need._blocks = max(whole, num_needed)

    def _fill(self, need: Need, match: PrefixMatch, length: int, is_parked: bool, is_whole: bool) -> None:
        sequence, budget, blocks, limits = need.sequence, need.budget, self._blocks, self._limits
        num_cached_tokens = match.num_cached_tokens
        tokens = limits.chunk_tokens(length - num_cached_tokens, length)
        checked = length if is_whole else num_cached_tokens + (tokens if tokens < budget else budget)
        if self.padding is not None and num_cached_tokens == length - 1 and not (is_parked or sequence.num_forks):
            need.padding = self.padding.of(length)
            tokens += need.padding
            checked += need.padding and self.padding.num_drafts
        needed = blocks.blocks_needed(sequence, match, checked)
        need.is_seen, need.match, need.is_parked = True, match, is_parked
        need._tokens, need._blocks = 0 if is_parked else tokens, needed


def look_away(need: Need) -> None:
    """Where nobody can know what is needed: nothing, and it is noted that it was read."""
    need.is_seen, need.match, need.is_parked = True, NO_MATCH, False
    need._tokens = need._blocks = 0
