"""Decode steps of one batch size, priced from a profile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.core.work import StepWork
from simulator.costs.cost import FEW_STEPS
from simulator.costs.curves.attention_times import deviation, read_context
from simulator.costs.curves.curve import Curve
from simulator.costs.curves.deviation import DeviationBatch


class DecodeBatch:
    """What decode steps of one batch size take.

    Uneven contexts take as long as if each were their mean plus `gain` standard deviations, or longer by `uneven`.

    Attributes:
        base: all but attention, ns.
        attention: attention of equal contexts, over the context, ns.
        gain: 0 where it was not measured.
        uneven: attention of uneven contexts beyond that of equal ones, ns; None where it was not measured.
        least: the share of the contexts for which attention takes its time at least, where some of it is not read.
        outside: axes on which the batch size lies beyond the measured range: name, and multiple of the range's end.
    """

    __slots__ = ("base", "attention", "gain", "uneven", "least", "outside")

    def __init__(
        self,
        base: float,
        attention: Curve,
        gain: float,
        uneven: DeviationBatch | None,
        least: float,
        outside: tuple[tuple[str, float], ...],
    ) -> None:
        self.base = base
        self.attention = attention
        self.gain = gain
        self.uneven = uneven
        self.least = least
        self.outside = outside

    def step(self, work: StepWork, unread: float) -> tuple[float, float]:
        """The context at which attention of a step is priced, and the time of the step in ns; `unread` tokens of each
        context are in the device's cache."""
        context = work.num_context_tokens / work.num_decodes
        if unread:
            context = read_context(context, unread, self.least)
        if not self.gain and not self.uneven:
            return context, self.base + self.attention(context)
        spread = deviation(work.num_decodes, work.num_context_tokens, work.num_squared_context_tokens)
        context += self.gain * spread
        return context, self._time(context, spread)

    def run(
        self, work: StepWork, num_steps: int, unread: float
    ) -> tuple[float, float, list[float] | NDArray[np.float64]]:
        """`num_steps` decode steps: the contexts of the first and the last, and all times, bit for bit as of `step`;
        of a few steps as a list."""
        if work.later_contexts is not None:
            return self._ragged(work, work.contexts(num_steps), unread)
        num_decodes, total, spread = work.num_decodes, work.num_context_tokens, 0.0
        if self.gain or self.uneven:  # all contexts grow alike, so their deviation stays
            spread = deviation(num_decodes, total, work.num_squared_context_tokens)
        offset = self.gain * spread
        if num_steps <= FEW_STEPS:
            totals = range(total, total + num_steps * num_decodes, num_decodes)
            if unread:
                least = self.least
                few = [read_context(each / num_decodes, unread, least) + offset for each in totals]
            else:
                few = [each / num_decodes + offset for each in totals]
            return few[0], few[-1], [self._time(context, spread) for context in few]
        contexts = self._read(work.contexts(num_steps) / num_decodes, unread) + offset
        return float(contexts[0]), float(contexts[-1]), self._times(contexts, spread)

    def _ragged(
        self, work: StepWork, totals: NDArray[np.int64], unread: float
    ) -> tuple[float, float, NDArray[np.float64]]:
        squares = work.num_decodes * work.squared_contexts(len(totals)) - totals * totals
        spreads: NDArray[np.float64] = np.sqrt(np.maximum(squares, 0)) / work.num_decodes
        contexts: NDArray[np.float64] = self._read(totals / work.num_decodes, unread) + self.gain * spreads
        return float(contexts[0]), float(contexts[-1]), self._times(contexts, spreads)

    def _read(self, contexts: NDArray[np.float64], unread: float) -> NDArray[np.float64]:
        """`read_context` of each, bit for bit."""
        return np.maximum(contexts - unread, self.least * contexts) if unread else contexts

    def _time(self, context: float, spread: float) -> float:
        time = self.base + self.attention(context)
        return time + self.uneven(context, spread) if self.uneven else time

    def _times(self, contexts: NDArray[np.float64], spreads: NDArray[np.float64] | float) -> NDArray[np.float64]:
        times = self.base + self.attention.many(contexts)
        return times + self.uneven.many(contexts, spreads) if self.uneven else times


def of_decodes(work: StepWork) -> StepWork:
    """`work` as a step of decodes if each of its prompts computes a single token: vLLM batches and captures it so."""
    if work.tokens_per_decode > 1 or any([chunk.num_tokens > 1 for chunk in work.chunks]):
        return work
    contexts = [chunk.start + 1 for chunk in work.chunks]
    decodes = StepWork(
        (),
        work.num_decodes + len(contexts),
        work.num_context_tokens + sum(contexts),
        work.num_squared_context_tokens + sum(context**2 for context in contexts),
        work.num_copied_blocks,
    )
    decodes.num_shared_tokens, decodes.num_saved_tokens = work.num_shared_tokens, work.num_saved_tokens
    return decodes
