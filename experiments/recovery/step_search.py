"""The best way to divide the time between known moments of a run into steps: the part that no policy decides."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from experiments.recovery.request_log import LogError, Moment
from simulator.costs.cost import CostModel, plan_to_price

_WIDTH = 20  # ways kept for each number of steps so far
_WORSE = 30.0  # misfit beyond that of the best way, from which a way is given up
_LINEAR = 3.0  # up to where a misfit is a square
_MOST = 20.0  # misfit of a span


class Chunk(NamedTuple):
    """Prompt tokens that a step computes."""

    request: int
    start: int
    num_tokens: int
    is_last: bool


class Step(NamedTuple):
    """What a step computes; sums over its decodes of their contexts and the squares of them."""

    num_decodes: int
    num_context_tokens: int
    num_squared_context_tokens: int
    chunks: tuple[Chunk, ...]

    @property
    def computes(self) -> bool:
        return bool(self.num_decodes or self.chunks)

    @property
    def next_decodes(self) -> Self:
        """The same decodes one step later, every context a token longer, without the prompts."""
        decodes, tokens, squares, _ = self
        return type(self)(decodes, tokens + decodes, squares + 2 * tokens + decodes, ())


class Span(NamedTuple):
    """The steps between two moments, and how long they took together; none while the engine was idle."""

    steps: tuple[Step, ...]
    time_ns: int


Price = Callable[[Step], float]
"""What a step is expected to take, in ns."""


class Tolerance(NamedTuple):
    """How far a span may be from its price.

    Attributes:
        share, fixed_ns: the misfit of a span is the square of (time - price) / (share of the price + fixed), from 3 on
            three times itself, and no more than 20.
        absurd_share, absurd_ns: it is absurd if they differ by more than half of the last step, this share of the price
            and this much.
        stall_ns: how much longer than that it may be, as an engine may stand still.
    """

    share: float
    fixed_ns: float
    absurd_share: float
    absurd_ns: float
    stall_ns: float = 0.0

    def misfit(self, time_ns: float, price_ns: float, last_price_ns: float) -> float:
        """Of a span; infinite if it is absurd. `last_price_ns` is that of its last step."""
        beyond = time_ns - price_ns
        absurd = last_price_ns / 2 + self.absurd_share * price_ns + self.absurd_ns
        if not -absurd <= beyond <= absurd + self.stall_ns:
            return math.inf
        off = abs(beyond) / (self.share * price_ns + self.fixed_ns)
        return min(off * off, _LINEAR * off, _MOST)


_ANY = Tolerance(0.0, math.inf, 0.0, math.inf)


class _State(Protocol):
    """Where the engine stands at a moment; hashable."""

    @property
    def num_steps(self) -> int: ...


State = TypeVar("State", bound=_State)


class Way(NamedTuple, Generic[State]):
    """A way to a state: its misfit in all, by how much each other way to a state on it had more at least, and the last
    of its spans after those of the way `before`."""

    state: State
    misfit: float
    margin: float
    span: Span | None
    before: Way[State] | None

    def spans(self) -> list[Span]:
        found: list[Span] = []
        way: Way[State] | None = self
        while way is not None and way.span is not None:
            found.append(way.span)
            way = way.before
        return found[::-1]


class Recovered(NamedTuple):
    """Spans in order; by how much more misfit every other division of the time into steps has at least that was not
    given up on the way; and the prices that tell how to divide a span among its steps."""

    spans: list[Span]
    margin: float
    price: Price


class NoWayError(LogError):
    """No way to divide the time up to a moment into steps agrees with the log; `spans` are the best up to the last."""

    def __init__(self, moment: int, spans: list[Span]) -> None:
        super().__init__(f"no steps of vLLM agree with the log beyond its moment {moment} of those that it tells of")
        self.spans = spans


def best_way(
    moments: Sequence[Moment],
    start: State,
    ahead: Callable[[State, Moment, Moment, Tolerance], Iterable[tuple[State, tuple[Step, ...], float]]],
    tolerance: Tolerance,
) -> tuple[list[Span], float]:
    """From the first moment to the last, with the least misfit; `ahead` tells the states at the next moment that the
    tolerance allows, with the steps that lead there and their misfit. The first steps of a run, which prepares what
    later ones use, may take any time.

    Returns: spans and margin, as of `Recovered`.

    Raises:
        NoWayError: no state is left.
    """
    ways = [Way(start, 0.0, math.inf, None, None)]
    for i, (moment, following) in enumerate(pairwise(moments)):
        found: dict[State, Way[State]] = {}
        for way in ways:
            for state, steps, misfit in ahead(way.state, moment, following, tolerance if i else _ANY):
                span = Span(steps, following.time_ns - moment.time_ns)
                new, old = Way(state, way.misfit + misfit, way.margin, span, way), found.get(state)
                if old is not None:
                    better, worse = sorted((old, new), key=lambda each: each.misfit)
                    new = better._replace(margin=min(better.margin, worse.misfit - better.misfit))
                found[state] = new
        if not found:
            raise NoWayError(i + 1, ways[0].spans())
        kept: dict[int, list[Way[State]]] = defaultdict(list)
        best = min(way.misfit for way in found.values())
        for way in sorted(found.values(), key=lambda way: way.misfit):
            if len(kept[way.state.num_steps]) < _WIDTH and way.misfit < best + _WORSE:
                kept[way.state.num_steps].append(way)
        ways = sorted((way for same in kept.values() for way in same), key=lambda way: way.misfit)
    return ways[0].spans(), min([ways[0].margin, *(way.misfit - ways[0].misfit for way in ways[1:])])


def timed(spans: Iterable[Span], price: Price) -> Iterator[tuple[Step, int, int]]:
    """Each step, when it began, since the first moment, and how long it took, in ns: those of a span in proportion to
    their prices."""
    now = 0
    for span in spans:
        prices = np.array([price(step) for step in span.steps])
        ends = now + np.rint(prices.cumsum() * (span.time_ns / prices.sum())) if len(prices) else prices
        for step, end in zip(span.steps, ends.astype(np.int64).tolist(), strict=True):
            yield step, now, end - now
            now = end
        if not span.steps:
            now += span.time_ns


def priced_by(cost: CostModel) -> Price:
    """What a cost model says that a step takes; asked once for equal steps."""
    known: dict[Step, int] = {}

    def price(step: Step) -> float:
        if step not in known:
            chunks = [(chunk.start, chunk.num_tokens, chunk.is_last) for chunk in step.chunks]
            known[step] = cost.step_ns(plan_to_price(chunks, *step[:3]))
        return known[step]

    return price
