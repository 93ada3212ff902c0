"""The lengths of sequences, and counters of decode steps, to which those of decoding sequences are tied."""

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


class Lengths:
    """How many tokens a sequence has, and of how many the KV is in the cache. While it decodes, both grow with a clock.

    Args:
        num_tokens: known tokens; none is computed.
    """

    __slots__ = ("_clock", "_num_tokens", "_num_computed_tokens")

    def __init__(self, num_tokens: int) -> None:
        self._clock: Clock = STOPPED
        self._num_tokens = num_tokens
        self._num_computed_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was generated."""
        return self._num_tokens + self._clock.count

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV is in the cache."""
        return self._num_computed_tokens + self._clock.count

    def tie(self, clock: Clock) -> None:
        """Let the lengths, all tokens but the last being computed, grow by as much as `clock` advances from now on."""
        self._num_tokens -= clock.count
        self._num_computed_tokens = self._num_tokens - 1
        self._clock = clock

    def untie(self) -> None:
        """Fix the lengths where the clock stands."""
        step = self._clock.count
        self._num_tokens += step
        self._num_computed_tokens += step
        self._clock = STOPPED

    def set_computed(self, num_computed_tokens: int) -> None:
        self._num_computed_tokens = num_computed_tokens

    def add_tokens(self, count: int) -> None:
        """Count `count` more known tokens (negative: discard what was generated past a stop)."""
        self._num_tokens += count
