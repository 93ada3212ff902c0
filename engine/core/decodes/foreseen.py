"""A sequence whose tokens of all steps to come are known when it joins (`ragged.py`): place, course, what is due."""

from __future__ import annotations

from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.core.clock import Clock, DecodeClock
from engine.core.sequence import Sequence


class Position(Clock):
    """The clock of one sequence: the tokens that it has gained since it joined."""

    __slots__ = ("clock", "joined", "gained")

    def __init__(self, clock: DecodeClock, gained: NDArray[np.int64]) -> None:
        self.clock = clock
        self.joined = clock.step
        self.gained = gained

    @property
    def count(self) -> int:
        return int(self.gained[self.clock.step - self.joined])


class Entry(NamedTuple):
    """What is kept of a sequence; parts int64[4, steps], its part of the sums of each step until it ends or rests."""

    position: Position
    parts: NDArray[np.int64]
    growth_steps: list[int]  # clock values
    fill_steps: list[int]

    @property
    def events(self) -> set[int]:
        """The clock values after its last token and after its last step."""
        return {self.position.joined + len(self.position.gained) - 1, self.end}

    @property
    def end(self) -> int:
        """The clock value after the last step of the sequence."""
        return self.position.joined + self.parts.shape[1]


def course(
    sequence: Sequence, gained: NDArray[np.int64], first: int, num_drafts: int, longest: int, *, plans_ahead: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens that a sequence knows before each step and after the last one in which it gains some, and the drafts that
    each step verifies: in one more step if it is late.

    Args:
        gained: tokens that it gains with its next 0, 1, 2, ... steps, if all verify `num_drafts` drafts.
        first: tokens that it may know when its first step is planned.
        num_drafts, longest, plans_ahead: as of `RaggedDecodes`.
    """
    end = sequence.end_length
    lengths = np.minimum(sequence.num_tokens + gained, end)
    num_steps = int(lengths.searchsorted(end))
    assert num_steps < len(lengths), "the trajectory ends before the sequence does"
    lengths = lengths[: num_steps + 1]
    if not plans_ahead:
        return lengths, np.minimum(num_drafts, longest - 1 - lengths[:-1])
    # Few steps are so near to the limit that they verify fewer drafts; these may bring fewer tokens, too.
    most: NDArray[np.int64] = np.append(first, lengths[:-1] + 1 + num_drafts)
    num_free = int(most.searchsorted(longest - 1 - num_drafts, "right"))
    known, drafted = lengths[: num_free + 1].tolist(), [num_drafts] * min(num_free, num_steps)
    for gain in chain(np.diff(lengths[num_free:]).tolist(), repeat(1)):
        is_foreseen = known[-1] == end and known[-2] + 1 == end
        left = longest - 1 - (known[-2] + 1 + drafted[-1] if drafted else first)
        if left < 0 or is_foreseen:
            break
        drafted.append(min(num_drafts, left))
        if known[-1] == end:
            break
        known.append(min(known[-1] + min(gain, 1 + drafted[-1]), end))
    return np.array(known), np.array(drafted)


def fill_steps(now: int, block_size: int, contexts: NDArray[np.int64], num_registered: int) -> list[int]:
    """Clock values at which a sequence fills a block, that before it joins `now` included; `contexts` are its tokens
    before each step."""
    num_full = np.concatenate([[contexts[0] - 2, contexts[0] - 1], contexts]) // block_size
    num_full[1] = min(num_full[1], num_registered)  # it may have sat out the step that was to register more
    return (now - 1 + np.flatnonzero(np.diff(num_full) > 0)).tolist()


def growth_steps(now: int, block_size: int, num_held: int, room: NDArray[np.int64]) -> dict[int, int]:
    """Clock values at which a sequence that holds `num_held` blocks `now` needs more, and how many; `room` is what it
    needs before each step, in tokens."""
    num_blocks = -(-room // block_size)
    num_blocks = np.maximum.accumulate(np.maximum(num_blocks, num_held))
    more = np.diff(num_blocks, prepend=num_held)
    steps = np.flatnonzero(more > 0)
    return dict(zip((now + steps).tolist(), more[steps].tolist(), strict=True))
