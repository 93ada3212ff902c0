"""A plan that is under way: made, but not committed yet."""

from __future__ import annotations

from collections import abc
from typing import Final, NamedTuple

from engine.core.plan import Drafts, StepPlan
from engine.core.sequence import Sequence

Stopped = abc.Mapping[Sequence, int]
"""Sequences that met a stop condition in a plan, with the number of tokens they generated past it."""

NOBODY: Final[Stopped] = {}
_NONE_STARTED: Final[list[Sequence]] = []  # shared, as it is replaced and never changed


class Verified(NamedTuple):
    """What an executor found when it verified the drafts of a step: how many there were, and how many tokens each
    decoding sequence gained, its own one included."""

    num_drafted: int
    gains: abc.Mapping[Sequence, int]


class Flight:
    """A plan that is not committed yet.

    Attributes:
        is_advanced: its tokens are counted.
        started: sequences to which the last chunk of a prompt gave a token.
        ended: sequences that got their last token with it.
        late: sequences whose end was not foreseen: they decode on until the plan is committed.
        victims: decoding sequences that got a token with it and were preempted before it was committed.
        drafts: how many tokens were drafted and accepted.
        padded: sequences admitted with padding, as if their drafts were under way.
        members: with a connector, the sequences that it computes something of.
        freed: who holds the blocks of those of them that ended or gave way before it has run, until then.
    """

    __slots__ = ("plan", "is_advanced", "started", "ended", "late", "victims", "drafts", "padded", "members", "freed")

    def __init__(
        self, plan: StepPlan, padded: abc.Collection[Sequence] = (), members: abc.Container[Sequence] = ()
    ) -> None:
        self.plan = plan
        self.padded = padded
        self.is_advanced = False
        self.started: list[Sequence] = _NONE_STARTED
        self.ended: list[Sequence] = []
        self.late: abc.Sequence[Sequence] = ()
        self.victims: abc.Sequence[Sequence] = ()
        self.drafts: Drafts | None = None
        self.members = members
        self.freed: list[Sequence] = []
