"""Steps of a run without their sequences, the spans of time that they fill, and their prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Self

import numpy as np

from engine.core.work import ChunkWork, StepWork
from simulator.costs.cost import CostModel


class Chunk(NamedTuple):
    """A chunk of a request's prompt that a step computes."""

    request: int
    start: int
    num_tokens: int
    is_last: bool


class Step(NamedTuple):
    """What a step computes: the number of decodes, the sums of their contexts and of the squares of these, and chunks
    of prompts."""

    num_decodes: int
    num_context_tokens: int
    num_squared_context_tokens: int
    chunks: tuple[Chunk, ...]

    @property
    def computes(self) -> bool:
        return bool(self.num_decodes or self.chunks)

    @property
    def next_decodes(self) -> Self:
        """The same decodes one step later: every context is a token longer, and no prompts."""
        decodes, tokens, squares, _ = self
        return type(self)(decodes, tokens + decodes, squares + 2 * tokens + decodes, ())


class Span(NamedTuple):
    """The steps between two moments and their total time; no steps if the engine was idle."""

    steps: tuple[Step, ...]
    time_ns: int


Price = Callable[[Step], float]
"""The expected time of a step in ns."""


def priced_by(cost: CostModel) -> Price:
    """The prices of a cost model, remembered for equal steps."""
    known: dict[Step, int] = {}

    def price(step: Step) -> float:
        if step not in known:
            chunks = [ChunkWork(chunk.start, chunk.num_tokens, chunk.is_last) for chunk in step.chunks]
            known[step] = cost.step_ns(StepWork(chunks, *step[:3]))
        return known[step]

    return price


def timed(spans: Iterable[Span], price: Price) -> Iterator[tuple[Step, int, int]]:
    """Each step with its start, in ns since the first moment, and its duration in ns.

    The time of a span is divided among its steps in proportion to their prices.
    """
    now = 0
    for span in spans:
        prices = np.array([price(step) for step in span.steps])
        ends = now + np.rint(prices.cumsum() * (span.time_ns / prices.sum())) if len(prices) else prices
        for step, end in zip(span.steps, ends.astype(np.int64).tolist(), strict=True):
            yield step, now, end - now
            now = end
        if not span.steps:
            now += span.time_ns
