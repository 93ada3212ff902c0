"""Decode steps of one batch size, priced from a profile."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.core.work import StepWork
from simulator.costs.attention import deviation
from simulator.costs.curve import Curve
from simulator.costs.deviation import DeviationBatch

_FEW_STEPS = 16  # up to this many steps are priced faster one by one than as arrays


class DecodeBatch(NamedTuple):
    """What decode steps of one batch size take.

    Uneven contexts take as long as if each were their mean plus `gain` standard deviations, or longer by `uneven`.

    Attributes:
        base: all but attention, ns.
        attention: attention of equal contexts, over the context, ns.
        gain: 0 where it was not measured.
        uneven: attention of uneven contexts beyond that of equal ones, ns; None where it was not measured.
        outside: axes on which the batch size lies beyond the measured range: name, and multiple of the range's end.
    """

    base: float
    attention: Curve
    gain: float
    uneven: DeviationBatch | None
    outside: tuple[tuple[str, float], ...]

    def context_of(self, work: StepWork) -> tuple[float, float]:
        """The context at which attention of a step is priced, and the standard deviation of its contexts."""
        mean = work.num_context_tokens / work.num_decodes
        if not self.gain and not self.uneven:
            return mean, 0.0
        spread = deviation(work.num_decodes, work.num_context_tokens, work.num_squared_context_tokens)
        return mean + self.gain * spread, spread

    def contexts_of(self, work: StepWork, num_steps: int) -> tuple[NDArray[np.float64], NDArray[np.float64] | float]:
        """`context_of` each of `num_steps` steps; a single deviation for all of them if all contexts grow alike."""
        contexts, num_decodes = work.contexts(num_steps), work.num_decodes
        means: NDArray[np.float64] = contexts / num_decodes
        if not self.gain and not self.uneven:
            return means, 0.0
        if work.later_contexts is None:
            spread = deviation(num_decodes, work.num_context_tokens, work.num_squared_context_tokens)
            return means + self.gain * spread, spread
        squares = num_decodes * work.squared_contexts(num_steps) - contexts * contexts
        spreads: NDArray[np.float64] = np.sqrt(np.maximum(squares, 0)) / num_decodes
        return means + self.gain * spreads, spreads

    def time(self, context: float, spread: float) -> float:
        """A step in ns, from what `context_of` returns."""
        time = self.base + self.attention(context)
        return time + self.uneven(context, spread) if self.uneven else time

    def times(self, contexts: NDArray[np.float64], spreads: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Steps in ns, from what `contexts_of` returns; bit for bit those of `time`."""
        if len(contexts) <= _FEW_STEPS and isinstance(spreads, float):
            return np.array([self.time(context, spreads) for context in contexts.tolist()])
        times = self.base + self.attention.many(contexts)
        return times + self.uneven.many(contexts, spreads) if self.uneven else times
