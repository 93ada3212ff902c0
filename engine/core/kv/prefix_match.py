"""What need not be computed of a sequence that is about to be admitted."""

from __future__ import annotations

from collections import Counter, abc
from functools import partial
from typing import Final, NamedTuple

from engine.core.kv.tiers.shared_store import StoreSight
from engine.core.kv.tiers.tier import Tier
from engine.core.sequence import Sequence


class Hit(NamedTuple):
    """A block of a prefix that a tier behind the device holds."""

    tier: Tier | StoreSight
    block_hash: int


class PrefixMatch(NamedTuple):
    """What need not be computed of a waiting sequence: what it kept in a preemption, and what the prefix cache holds.

    Attributes:
        blocks: the cached blocks of the device behind those that it kept.
        num_cached_tokens: tokens that need no computing, at most all known tokens but one.
        num_revived: how many of `blocks` are free now and leave the free pool when they are used.
        copy_last: the last of `blocks` is held by another sequence and must be copied before the one token that is
            left to compute is written into it.
        num_kept: leading blocks that the sequence holds already.
        hits: the blocks after these that tiers behind the device hold.
    """

    blocks: list[int]
    num_cached_tokens: int
    num_revived: int
    copy_last: bool
    num_kept: int = 0
    hits: abc.Sequence[Hit] = ()

    def count_for(self, sequence: Sequence, block_size: int) -> None:
        """Count what it saves the sequence that is admitted with it."""
        sequence.set_computed(self.num_cached_tokens)
        if not sequence.num_preemptions:
            sequence.num_cached_tokens = self.num_cached_tokens
            if self.hits:
                blocks = Counter(hit.tier.name for hit in self.hits)
                sequence.cached_by_tier = {name: count * block_size for name, count in blocks.items()}


make_match = partial(tuple.__new__, PrefixMatch)  # from a tuple of all fields, as `_make`, without a Python call
NO_MATCH: Final = PrefixMatch([], 0, 0, False)
