"""Speculative decoding in simulation: how many drafts of each step are accepted is drawn."""

from __future__ import annotations

from collections.abc import Sequence as Numbers
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.core.decodes.interface import Decodes
from engine.core.decodes.ragged import RaggedDecodes
from engine.core.sequence import Sequence


class Speculation(NamedTuple):
    """What is drafted and accepted.

    Attributes:
        rates: for each draft of a step the probability that it and all before it are accepted; never increasing.
        seed: of the draws.
    """

    rates: tuple[float, ...]
    seed: int

    @property
    def num_drafts(self) -> int:
        return len(self.rates)

    def make_decodes(self, block_size: int, longest: int, *, plans_ahead: bool = False) -> Decodes:
        return RaggedDecodes(block_size, longest, self.num_drafts, self.trajectory, plans_ahead=plans_ahead)

    def trajectory(self, sequence: Sequence) -> NDArray[np.int64]:
        """Tokens after 0, 1, 2, ... steps. The draws hang on the sequence and on how far it is, and on no other."""
        index = sequence.request.sequences.index(sequence)
        generator = np.random.default_rng((self.seed, sequence.request_id, index, sequence.num_tokens))
        draws = generator.random(sequence.end_length - sequence.num_tokens)
        # A draft is accepted if the draw is below its rate: so many rates exceed the draw.
        accepted = np.negative(self.rates).searchsorted(-draws)
        return np.concatenate([[0], np.cumsum(1 + accepted)])


def rates_of(acceptance_rate: float, num_drafts: int) -> tuple[float, ...]:
    """Rates where each draft is accepted with the same probability if those before it are."""
    return tuple(acceptance_rate ** (i + 1) for i in range(num_drafts))


def rates_of_length(length: float, num_drafts: int) -> tuple[float, ...]:
    """Rates for `length` tokens per step on average, the sampled one included, with as little variance as there can be.

    Where only the mean is known, engines that simulate acceptance do so (`synthetic_acceptance_length` of vLLM): 2.6
    tokens with three drafts are 2 or 3.
    """
    return tuple(min(1.0, max(0.0, length - 1 - i)) for i in range(num_drafts))


def check_rates(rates: Numbers[float]) -> str | None:
    """What is wrong with rates, in words; None if nothing is."""
    if not all(0 <= rate <= 1 for rate in rates):
        return "each must be a number >= 0 and <= 1"
    if any(later > rate for rate, later in zip(rates, rates[1:], strict=False)):
        return "must not increase: a draft is accepted only if those before it are"
    return None
