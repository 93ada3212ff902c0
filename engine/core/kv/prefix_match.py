"""What need not be computed of a sequence that is about to be admitted."""

from __future__ import annotations

from typing import NamedTuple


class PrefixMatch(NamedTuple):
    """What need not be computed of a waiting sequence: what it kept in a preemption, and what the prefix cache holds.

    Attributes:
        blocks: the cached blocks behind those that it kept.
        num_cached_tokens: tokens that need no computing, at most all known tokens but one.
        num_revived: how many of `blocks` are free now and leave the free pool when they are used.
        copy_last: the last of `blocks` is held by another sequence and must be copied before the one token that is
            left to compute is written into it.
        num_kept: leading blocks that the sequence holds already.
    """

    blocks: list[int]
    num_cached_tokens: int
    num_revived: int
    copy_last: bool
    num_kept: int = 0


NO_MATCH = PrefixMatch([], 0, 0, False)
