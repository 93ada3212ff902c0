"""What the prefix cache, on the device and behind it, holds of a waiting sequence."""

from __future__ import annotations

from collections import abc
from typing import NamedTuple

from engine.core.kv.prefix_index import Content
from engine.core.kv.tier import Tier


class Hit(NamedTuple):
    """A block of a prefix that a tier holds."""

    tier: Tier
    block_hash: int
    content: Content | None


class PrefixMatch(NamedTuple):
    """What the prefix cache holds of a waiting sequence.

    Attributes:
        blocks: the cached leading blocks of the device.
        num_cached_tokens: tokens that need no computing, at most all known tokens but one.
        num_revived: how many of `blocks` are free now and leave the free pool when they are used.
        copy_last: the last of `blocks` is held by another sequence and must be copied before the one token that is
            left to compute is written into it.
        hits: the blocks after these that tiers behind the device hold.
    """

    blocks: list[int]
    num_cached_tokens: int
    num_revived: int
    copy_last: bool
    hits: abc.Sequence[Hit] = ()


NO_MATCH = PrefixMatch([], 0, 0, False)
