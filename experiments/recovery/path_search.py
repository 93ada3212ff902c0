"""Search for the most plausible division of the time between known moments of a run into steps.

A path is a sequence of states of the engine, one per moment, with the steps between them. The misfit of a path says how
far the measured times between moments are from the prices of its steps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, Protocol, TypeVar

from experiments.recovery.request_log import LogError, Moment
from experiments.recovery.steps import Price, Span, Step

_WIDTH = 20  # paths kept per number of steps so far
_WORSE = 30.0  # paths whose misfit exceeds the best one's by this much are dropped
_LINEAR = 3.0  # the misfit of a span grows as a square up to here, then linearly
_MOST = 20.0  # largest misfit of a span


class Tolerance(NamedTuple):
    """How far the measured time of a span may be from its price.

    Attributes:
        share, fixed_ns: the misfit is the least of x^2, 3 x and 20; x = |time - price| / (share * price + fixed_ns).
        absurd_share, absurd_ns: the span is impossible if time and price differ by more than
            last step / 2 + absurd_share * price + absurd_ns.
        stall_ns: how much longer than that the time may be, as an engine can stall.
    """

    share: float
    fixed_ns: float
    absurd_share: float
    absurd_ns: float
    stall_ns: float = 0.0

    def misfit(self, time_ns: float, price_ns: float, last_price_ns: float) -> float:
        """The misfit of a span; infinite if it is impossible. `last_price_ns` is the price of its last step."""
        beyond = time_ns - price_ns
        absurd = last_price_ns / 2 + self.absurd_share * price_ns + self.absurd_ns
        if not -absurd <= beyond <= absurd + self.stall_ns:
            return math.inf
        off = abs(beyond) / (self.share * price_ns + self.fixed_ns)
        return min(off * off, _LINEAR * off, _MOST)


_ANY = Tolerance(0.0, math.inf, 0.0, math.inf)


class _State(Protocol):
    """The state of the engine at a moment; hashable."""

    @property
    def num_steps(self) -> int: ...


State = TypeVar("State", bound=_State)


class SearchPath(NamedTuple, Generic[State]):
    """A path to a state.

    Attributes:
        state: where it ends.
        misfit: the sum over its spans.
        margin: lower bound on the extra misfit of every other path to a state on this one.
        span: its last span; None for the start.
        before: the path without its last span.
    """

    state: State
    misfit: float
    margin: float
    span: Span | None
    before: SearchPath[State] | None

    def spans(self) -> list[Span]:
        found: list[Span] = []
        path: SearchPath[State] | None = self
        while path is not None and path.span is not None:
            found.append(path.span)
            path = path.before
        return found[::-1]


class Recovered(NamedTuple):
    """The result of a search.

    Attributes:
        spans: in order.
        margin: lower bound on the extra misfit of every other division into steps that the search did not drop.
        price: prices by which the time of a span is divided among its steps.
    """

    spans: list[Span]
    margin: float
    price: Price


class NoPathError(LogError):
    """No division of the time up to a moment into steps agrees with the log; `spans` is the best up to the moment
    before."""

    def __init__(self, moment: int, spans: list[Span]) -> None:
        super().__init__(f"no steps of vLLM agree with the log beyond moment {moment}")
        self.spans = spans


def best_path(
    moments: Sequence[Moment],
    start: State,
    ahead: Callable[[State, Moment, Moment, Tolerance], Iterable[tuple[State, tuple[Step, ...], float]]],
    tolerance: Tolerance,
) -> tuple[list[Span], float]:
    """The path from the first moment to the last with the least misfit.

    `ahead` yields the states at the next moment that the tolerance allows, with the steps in between and their misfit.
    The first span may take any time, since an engine prepares what later steps use.

    Returns: spans and margin, as of `Recovered`.

    Raises:
        NoPathError: no state is left.
    """
    paths = [SearchPath(start, 0.0, math.inf, None, None)]
    for i, (moment, following) in enumerate(pairwise(moments)):
        found: dict[State, SearchPath[State]] = {}
        for path in paths:
            for state, steps, misfit in ahead(path.state, moment, following, tolerance if i else _ANY):
                span = Span(steps, following.time_ns - moment.time_ns)
                new, old = SearchPath(state, path.misfit + misfit, path.margin, span, path), found.get(state)
                if old is not None:
                    better, worse = sorted((old, new), key=lambda each: each.misfit)
                    new = better._replace(margin=min(better.margin, worse.misfit - better.misfit))
                found[state] = new
        if not found:
            raise NoPathError(i + 1, paths[0].spans())
        kept: dict[int, list[SearchPath[State]]] = defaultdict(list)
        best = min(path.misfit for path in found.values())
        for path in sorted(found.values(), key=lambda path: path.misfit):
            if len(kept[path.state.num_steps]) < _WIDTH and path.misfit < best + _WORSE:
                kept[path.state.num_steps].append(path)
        paths = sorted((path for same in kept.values() for path in same), key=lambda path: path.misfit)
    return paths[0].spans(), min([paths[0].margin, *(path.misfit - paths[0].misfit for path in paths[1:])])
