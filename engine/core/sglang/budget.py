"""What SGLang lets the prompts of one step have: tokens of the step, and of the pool with what they may generate
(`PrefillAdder`, `PrefillBudget` and `NewTokenRatioTracker` of SGLang 0.5.23)."""

from __future__ import annotations

from enum import Enum, auto

from engine.core.kv.trees.radix import RadixManager
from engine.core.sequence import Sequence

MOST_NEW_TOKENS = 4096  # of a request that are reckoned with


class Verdict(Enum):
    CONTINUE = auto()
    NO_MEMORY = auto()
    STEP_IS_FULL = auto()


def max_new_tokens(sequence: Sequence) -> int:
    """Tokens that a request may generate."""
    return sequence.end_length - sequence.request.num_prompt_tokens


class NewTokenRatio:
    """The share of what running requests may still generate that is kept free for them. It sinks with every decode
    step, and is estimated anew when requests had to give way.

    Attributes:
        current: the share.
    """

    def __init__(self, conservativeness: float) -> None:
        self._first = min(0.7 * conservativeness, 1.0)
        self._least = min(self._first * 0.14, 1.0)
        self._decay = (self._first - self._least) / 600
        self.current = self._first
        self._num_counted = 0

    def follow(self, num_decode_steps: int) -> None:
        """Sink with the decode steps, of all there were so far, that ran after a planned one without being planned."""
        for _ in range(num_decode_steps - self._num_counted):
            if self.current == self._least:
                break
            self.decay()
        self._num_counted = num_decode_steps

    def note_planned(self) -> None:
        """A decode step is planned, for which it has sunk if it is to."""
        self._num_counted += 1

    def decay(self) -> None:
        self.current = max(self.current - self._decay, self._least)

    def set(self, ratio: float) -> None:
        self.current = min(1.0, ratio)

    def reset(self) -> None:
        self.current = self._first


class PrefillBudget:
    """The budget of a step, which each admission charges.

    Args:
        most_tokens: prompt tokens of the step.
        may_cut: whether a prompt may be cut to what is left of these.
        num_mixed: decodes that take part in the step.
        num_reserved: tokens that those who run are expected to generate.
    """

    def __init__(
        self, blocks: RadixManager, most_tokens: int, *, may_cut: bool, num_mixed: int, num_reserved: float
    ) -> None:
        self._blocks = blocks
        self._size = blocks.block_size
        self._may_cut = may_cut
        self.free_tokens = most_tokens - num_mixed
        self._total = num_mixed + num_reserved  # tokens of the pool, with those that are generated later
        self._current = num_mixed  # and without

    @property
    def verdict(self) -> Verdict:
        num_free = self._blocks.num_free_blocks * self._size
        if not (num_free - self._total > 0 and num_free - self._current > 0):
            return Verdict.NO_MEMORY
        return Verdict.CONTINUE if self.free_tokens > 0 else Verdict.STEP_IS_FULL

    def cut(self, num_tokens: int) -> int:
        """Tokens of the next chunk of a prompt that was cut, of which so many are left."""
        num_free = self._blocks.num_free_blocks * self._size
        most = min(self.free_tokens, int(num_free - self._total))
        return min(num_tokens, most if most > 0 else self.free_tokens)

    def admit(self, sequence: Sequence, num_cached: int, *, is_first: bool) -> int | Verdict:
        """Tokens that a sequence may compute; or why it may not enter."""
        left = sequence.num_tokens - num_cached
        num_new = min(max(max_new_tokens(sequence) - sequence.num_output_tokens, 0), MOST_NEW_TOKENS)
        num_free = self._blocks.num_free_beside(sequence) * self._size
        if left + num_new + self._size >= num_free - self._total:
            return Verdict.NO_MEMORY
        if not self._may_cut:
            return left if is_first or self._padded(left) < self.free_tokens else Verdict.STEP_IS_FULL
        if self._padded(left) <= self.free_tokens:
            return left
        end = num_cached + self.free_tokens // self._size * self._size
        num_tokens = end // self._size * self._size - num_cached
        return num_tokens if num_tokens > 0 else Verdict.STEP_IS_FULL

    def charge(self, sequence: Sequence, num_tokens: int, *, is_cut: bool) -> None:
        padded = self._padded(num_tokens)
        num_new = 0 if is_cut else min(max_new_tokens(sequence), MOST_NEW_TOKENS)
        self._total += padded + self._size + num_new
        self._current += padded + self._size
        self.free_tokens -= padded

    def _padded(self, num_tokens: int) -> int:
        return -(-num_tokens // self._size) * self._size
