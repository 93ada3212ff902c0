"""Counters of decode steps, which lengths of decoding sequences are tied to."""

from __future__ import annotations

from typing import Final


class Clock:
    """How many tokens a sequence has gained, up to a constant, since it was tied to this clock."""

    __slots__ = ()

    @property
    def count(self) -> int:
        raise NotImplementedError


class DecodeClock(Clock):
    """The number of decode steps so far.

    Where every decoding sequence grows by one token per step, all of them share this clock: a length is kept as an
    offset to the counter, and advancing the counter advances all lengths at once.
    """

    __slots__ = ("step",)

    def __init__(self) -> None:
        self.step = 0

    @property
    def count(self) -> int:
        return self.step


STOPPED: Final = DecodeClock()  # the clock of a sequence that is not decoding; it never advances
