"""The steps of a real vLLM run, recovered from its per-request log.

By the clock of the engine core such a log says when each request was taken in, and when its first and its last token
came. Each of these is the end of a step, but how many steps lie between two of them it does not say, nor what was in
them. vLLM's rules do, once that number is known: which requests decode, which chunks of prompts are computed, who is
admitted. So it is searched for: from one known moment to the next, with every number of steps that a cost model does
not find absurd, keeping only ways on which every first and last token falls due in the very step that ends at its time.

The rules are restated here in as few lines as a search needs: requests first come, first served; chunked prefill;
asynchronous scheduling, so a step is planned when the one before it starts. Left out are KV blocks: of a run in which
requests wait for them, or are preempted, no steps or wrong ones are found. What prompts find in the prefix cache is
taken from a simulation. `experiments/recovered_replay.py` then has the scheduling core itself decide, with all of that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from experiments.request_log import LogError, Moment, RequestLog, Token
from harness.arrivals import make_arrivals
from harness.config import RunConfig
from harness.measured import MeasuredRun
from harness.simulated import SimulatedEngine, cost_model
from simulator.cost import CostModel, plan_to_price

# The misfit of a span is the square of (time - price) / (2 % of the price + 0.7 ms), from 3 on three times itself.
_SHARE, _FIXED_NS, _LINEAR = 0.02, 700_000, 3.0
# It is absurd if they differ by more than half of the last step, 12 % of the price and 1 ms.
_ABSURD_SHARE, _ABSURD_NS = 0.12, 1_000_000
_WIDTH = 60  # ways kept for each number of steps so far
_MOST_PASSES = 8


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


class Span(NamedTuple):
    """The steps between two moments, and how long they took together; none while the engine was idle."""

    steps: tuple[Step, ...]
    time_ns: int


Price = Callable[[Step], float]
"""What a step is expected to take, in ns."""


class _State(NamedTuple):
    """Where the engine stands at a moment.

    Attributes:
        num_steps: steps so far.
        num_running: requests that count as running when the next step but one is planned.
        num_admitted: requests that are or were running.
        prefilling: those with prompt tokens left, and how many are computed.
        ending: the steps in which those that decode get their last token.
        step: what is computed next, if anything.
    """

    num_steps: int
    num_running: int
    num_admitted: int
    prefilling: tuple[tuple[int, int], ...]
    ending: tuple[tuple[int, int], ...]
    step: Step


class _Way(NamedTuple):
    """A way to a state: its misfit in all, by how much each other way to a state on it had more at least, and the last
    of its spans after those of the way `before`."""

    state: _State
    misfit: float
    margin: float
    span: Span | None
    before: _Way | None

    def spans(self) -> list[Span]:
        found, way = [], self
        while way.before is not None:
            assert way.span is not None
            found.append(way.span)
            way = way.before
        return found[::-1]


class Recovered(NamedTuple):
    """Spans in order, and by how much more misfit every other division of the time into steps has at least, if it ends
    in the same state and was not given up on the way."""

    spans: list[Span]
    margin: float


class NoWayError(LogError):
    """No way to divide the time up to a moment into steps agrees with the log; `way` is the best up to the last."""

    def __init__(self, moment: int, way: _Way) -> None:
        super().__init__(f"no steps agree with the log up to its moment {moment}")
        self.way = way


class _Search:
    """Finds the steps of a log under limits on a step; `cached` is what prompts find in the prefix cache, in tokens."""

    def __init__(
        self, log: RequestLog, cached: Sequence[int], max_num_seqs: int, max_num_batched_tokens: int, price: Price
    ) -> None:
        self._log = log
        self._cached = cached
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._price = price

    def run(self) -> Recovered:
        """Raises NoWayError."""
        ways = [_Way(_State(0, 0, 0, (), (), Step(0, 0, 0, ())), 0.0, math.inf, None, None)]
        for i, (moment, following) in enumerate(pairwise(self._log.moments)):
            found: dict[_State, _Way] = {}
            for way in ways:
                for state, steps, misfit in self._ahead(way.state, moment, following, is_first=i == 0):
                    span = Span(steps, following.time_ns - moment.time_ns)
                    new, old = _Way(state, way.misfit + misfit, way.margin, span, way), found.get(state)
                    if old is not None:
                        better, worse = sorted((old, new), key=lambda each: each.misfit)
                        new = better._replace(margin=min(better.margin, worse.misfit - better.misfit))
                    found[state] = new
            if not found:
                raise NoWayError(i + 1, ways[0])
            kept: dict[int, list[_Way]] = defaultdict(list)
            for way in sorted(found.values(), key=lambda way: way.misfit):
                if len(kept[way.state.num_steps]) < _WIDTH:
                    kept[way.state.num_steps].append(way)
            ways = sorted((way for same in kept.values() for way in same), key=lambda way: way.misfit)
        return Recovered(ways[0].spans(), min([ways[0].margin, *(way.misfit - ways[0].misfit for way in ways[1:])]))

    def _ahead(
        self, state: _State, moment: Moment, following: Moment, *, is_first: bool
    ) -> Iterable[tuple[_State, tuple[Step, ...], float]]:
        """States at the `following` moment, with the steps that lead there and their misfit. The first steps of a run,
        which prepares what later ones use, may take any time."""
        time, priced = following.time_ns - moment.time_ns, 0.0
        steps: tuple[Step, ...] = ()
        if not state.step.computes:  # idle, or all was planned before the first request came
            state = self._planned(state, state.step, moment.num_seen)
            if not state.step.computes:
                if not following.tokens:
                    yield state, (), 0.0
                return
        while True:
            price = self._price(state.step)
            steps, priced = (*steps, state.step), priced + price
            absurd = math.inf if is_first else price / 2 + _ABSURD_SHARE * priced + _ABSURD_NS
            if priced > time + absurd:
                return
            state, tokens = self._done(state, moment.num_seen)
            if tokens == following.tokens and priced >= time - absurd:
                off = abs(time - priced) / (_SHARE * priced + _FIXED_NS)
                yield state, steps, 0.0 if is_first else min(off * off, _LINEAR * off)
            if tokens or not state.step.computes:
                return

    def _done(self, state: _State, num_seen: int) -> tuple[_State, frozenset[Token]]:
        """The state after the next step, and the first and last tokens that it yields."""
        log, number = self._log, state.num_steps
        decodes, tokens, squares, chunks = state.step
        tokens, squares = tokens + decodes, squares + 2 * tokens + decodes  # every context has grown by a token
        ended = [request for last, request in state.ending if last == number]
        for request in ended:
            context = log.num_prompt_tokens[request] + log.num_output_tokens[request]
            decodes, tokens, squares = decodes - 1, tokens - context, squares - context**2
        came, joining = set[Token](), []
        for request in (chunk.request for chunk in chunks if chunk.is_last):
            came.add((request, False))
            more = log.num_output_tokens[request] - 1
            if more:
                context = log.num_prompt_tokens[request] + 1
                decodes, tokens, squares = decodes + 1, tokens + context, squares + context**2
                joining.append((number + more, request))
            else:
                ended.append(request)
        came |= {(request, True) for request in ended}
        ending = tuple(sorted([*(entry for entry in state.ending if entry[0] != number), *joining]))
        ahead = self._planned(state._replace(ending=ending), Step(decodes, tokens, squares, ()), num_seen)
        # Those that have ended took a seat while that was planned.
        return ahead._replace(num_steps=number + 1, num_running=ahead.num_running - len(ended)), frozenset(came)

    def _planned(self, state: _State, decoding: Step, num_seen: int) -> _State:
        """`state` with its next step: all that decode, then prompts as far as the limits go."""
        chunks, prefilling = [], []
        left = self._max_num_batched_tokens - decoding.num_decodes
        num_running, num_admitted = state.num_running, state.num_admitted
        queue = [*state.prefilling]
        while left > 0:
            if not queue:
                if num_admitted >= num_seen or num_running >= self._max_num_seqs:
                    break
                queue.append((num_admitted, self._cached[num_admitted]))
                num_running, num_admitted = num_running + 1, num_admitted + 1
            request, start = queue.pop(0)
            length = self._log.num_prompt_tokens[request]
            count = min(length - start, left)
            left -= count
            chunks.append(Chunk(request, start, count, start + count == length))
            if start + count < length:
                prefilling.append((request, start + count))
        return state._replace(
            num_running=num_running,
            num_admitted=num_admitted,
            prefilling=(*prefilling, *queue),
            step=decoding._replace(chunks=tuple(chunks)),
        )


def recover(config: RunConfig, run: MeasuredRun, log: RequestLog, graph_sizes: Sequence[int]) -> Recovered:
    """The steps of `run`, an engine with the limits of `config`; its cost model tells one way from another.

    Where no way is found, the prices of decodes are corrected by what they took on the best way up to there, by the
    CUDA graph, of `graph_sizes`, that serves them, and it is searched again.

    Raises:
        LogError: no steps agree with the log, a request is refused, or the engine does not schedule as vLLM does.
    """
    if not config.scheduler.async_scheduling or config.scheduler.policy != "mixed":
        raise LogError("steps are searched for by the rules of scheduler=vllm")
    engine = SimulatedEngine(config, run.trace, make_arrivals(run.trace, config.arrival, np.random.default_rng(0)))
    engine.run()
    served = engine.recorder.tables(run.trace, engine.unfinished()).requests
    if num_other := int((served["num_output_tokens"].to_numpy() != log.num_output_tokens).sum()):
        raise LogError(f"{run.source}: {num_other} requests are refused or cut short in the simulation")
    cached, price = served["num_cached_tokens"].astype(int).tolist(), priced_by(cost_model(config))

    def learning(beyond: Mapping[int | None, float], passes: int) -> Recovered:
        def corrected(step: Step) -> float:
            return price(step) + beyond.get(graph_of(step, graph_sizes), 0.0)

        try:
            return _Search(log, cached, config.max_num_seqs, config.max_num_batched_tokens, corrected).run()
        except NoWayError as error:
            if passes == 1:
                raise
            return learning(_beyond_prices(error.way.spans()[1:], price, graph_sizes), passes - 1)

    return learning({}, _MOST_PASSES)


def graph_of(step: Step, sizes: Sequence[int]) -> int | None:
    """The size of the CUDA graph, of `sizes`, that serves a step of decodes; None of others."""
    return None if step.chunks else next((size for size in sizes if size >= step.num_decodes), None)


def _beyond_prices(spans: Iterable[Span], price: Price, graph_sizes: Sequence[int]) -> Mapping[int | None, float]:
    """By CUDA graph, what decode steps took beyond their prices, ns a step; of spans that one graph served."""
    totals: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for span in spans:
        graphs = {graph_of(step, graph_sizes) for step in span.steps}
        if len(graphs) == 1 and (size := graphs.pop()) is not None:
            totals[size][0] += span.time_ns - sum(map(price, span.steps))
            totals[size][1] += len(span.steps)
    return {size: total / count for size, (total, count) in totals.items()}


def priced_by(cost: CostModel) -> Price:
    """What a cost model says that a step takes; asked once for equal steps."""
    known: dict[Step, int] = {}

    def price(step: Step) -> float:
        if step not in known:
            chunks = [(chunk.start, chunk.num_tokens, chunk.is_last) for chunk in step.chunks]
            known[step] = cost.step_ns(plan_to_price(chunks, *step[:3]))
        return known[step]

    return price
