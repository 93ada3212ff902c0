"""The steps of a real vLLM run, recovered from its per-request log.

By the clock of the engine core such a log says when each request was taken in, and when its first and its last token
came. Each of these is the end of a step, but how many steps lie between two of them it does not say, nor what was in
them. vLLM's rules do, once that number is known: which requests decode, which chunks of prompts are computed, who is
admitted. So it is searched for: from one known moment to the next, with every number of steps that a cost model does
not find absurd, keeping only ways on which every first and last token falls due in the very step that ends at its time.

The rules are restated here in as few lines as a search needs: requests first come, first served; chunked prefill;
asynchronous scheduling, so a step is planned when the one before it starts. A run with preemptions has no such way.
`replay` then has the scheduling core itself decide, at the recovered times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.plan import PrefillChunk, StepPlan
from harness.arrivals import make_arrivals
from harness.config import RunConfig
from harness.measured import MeasuredRun
from harness.measured.measured_run import whole_ns
from harness.simulated import SimulatedEngine, cost_model
from simulator.cost import CostModel

Ints = npt.NDArray[np.int64]

_TOGETHER_NS = 600_000  # events this close are of the same step: no step is as short
_SHARE, _FIXED_NS = 0.02, 700_000  # by which what is priced may well be off
_ABSURD_SHARE, _ABSURD_NS = 0.12, 1_000_000  # by which it may not, beside half a step
_LINEAR = 3.0  # from as many times what may well be, misfits count linearly
_WIDTH = 60  # ways kept for each number of steps so far
_MOST_PASSES = 8
_NEVER_NS = 10**13


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


class Moment(NamedTuple):
    """A moment at which something is known to have happened: the end of a step, unless the engine was idle.

    Attributes:
        time_ns: since the first of them.
        tokens: requests whose first (False) or last (True) token came.
        num_seen: how many requests the engine had taken in by then.
    """

    time_ns: int
    tokens: frozenset[tuple[int, bool]]
    num_seen: int


class Span(NamedTuple):
    """The steps between two moments, and how long they took together."""

    steps: tuple[Step, ...]
    time_ns: int


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival: tokens of prompts, output, and prompts found in the prefix cache; the moments at
    which something happened to them, and by request that at which it was taken in."""

    num_prompt_tokens: list[int]
    num_output_tokens: list[int]
    num_cached_tokens: list[int]
    moments: list[Moment]
    seen_ns: Ints

    @classmethod
    def of(cls, run: MeasuredRun, num_cached_tokens: Iterable[int]) -> Requests:
        """Those of a log that says when they were queued, in the order in which they came."""
        table = run.requests
        queued, first, last = (whole_ns(table[name]) for name in ("queued_time", "first_token_time", "finish_time"))
        assert (np.diff(queued) >= 0).all(), "requests were taken in in another order than they came"
        tokens = [(int(time), (i, is_last)) for is_last, times in ((False, first), (True, last))
                  for i, time in enumerate(times)]  # fmt: skip
        times = np.unique(np.concatenate([first, last]))
        before = times[np.maximum(np.searchsorted(times, queued, side="right") - 1, 0)]
        delays = queued - before
        is_after_tokens = (delays >= 0) & (delays < _TOGETHER_NS)
        delay = int(np.median(delays[is_after_tokens])) if is_after_tokens.any() else 0
        seen = np.where(is_after_tokens, before, queued - delay)
        known = sorted([*tokens, *((int(time), None) for time in seen)], key=lambda event: event[0])
        groups: list[list[tuple[int, tuple[int, bool] | None]]] = []
        for event in known:
            if not groups or event[0] - groups[-1][0][0] > _TOGETHER_NS:
                groups.append([])
            groups[-1].append(event)
        start = groups[0][0][0]
        moments, num_seen = [], 0
        for group in groups:
            num_seen += sum(token is None for _, token in group)
            time = next((time for time, token in group if token is not None), group[0][0])
            moments.append(Moment(time - start, frozenset(token for _, token in group if token), num_seen))
        ends = np.repeat([moment.time_ns for moment in moments], np.diff([0, *(m.num_seen for m in moments)]))
        return cls(
            table["num_prompt_tokens"].tolist(), table["num_output_tokens"].tolist(), list(num_cached_tokens),
            moments, ends,
        )  # fmt: skip


class _State(NamedTuple):
    """One way to have come to a moment.

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
    """A state, the spans that led to it, the last first, and by how much their times are unlike their prices."""

    state: _State
    misfit: float
    span: Span | None
    before: _Way | None

    def spans(self) -> list[Span]:
        found, way = [], self
        while way.before is not None:
            assert way.span is not None
            found.append(way.span)
            way = way.before
        return found[::-1]


class NoWayError(ValueError):
    """No way to divide the time up to `moment` into steps agrees with the log; `way` is the best up to the last."""

    def __init__(self, moment: int, way: _Way) -> None:
        super().__init__(f"no steps agree with the log up to its moment {moment}")
        self.way = way


class _Search:
    """Finds the steps of `requests` under limits on a step; `price` says what a step may take, in ns."""

    def __init__(
        self, requests: Requests, max_num_seqs: int, max_num_batched_tokens: int, price: Callable[[Step], float]
    ) -> None:
        self._requests = requests
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._price = price

    def run(self) -> list[Span]:
        """Raises NoWayError."""
        nothing = Step(0, 0, 0, ())
        ways = [_Way(_State(0, 0, 0, (), (), nothing), 0.0, None, None)]
        for i, (moment, following) in enumerate(pairwise(self._requests.moments)):
            found: dict[_State, _Way] = {}
            for way in ways:
                for state, steps, misfit in self._ahead(way.state, moment, following, is_first=i == 0):
                    total = way.misfit + misfit
                    if state not in found or total < found[state].misfit:
                        found[state] = _Way(state, total, Span(steps, following.time_ns - moment.time_ns), way)
            if not found:
                raise NoWayError(i + 1, ways[0])
            kept: dict[int, list[_Way]] = defaultdict(list)
            for way in sorted(found.values(), key=lambda way: way.misfit):
                if len(kept[way.state.num_steps]) < _WIDTH:
                    kept[way.state.num_steps].append(way)
            ways = sorted((way for same in kept.values() for way in same), key=lambda way: way.misfit)
        return ways[0].spans()

    def _ahead(
        self, state: _State, moment: Moment, following: Moment, *, is_first: bool
    ) -> Iterable[tuple[_State, tuple[Step, ...], float]]:
        """States at the `following` moment, with the steps that lead there and their misfit. The first steps of a run,
        which prepares what later ones use, may take any time."""
        time, priced = following.time_ns - moment.time_ns, 0.0
        steps: tuple[Step, ...] = ()
        if not _computes(state.step):  # idle, or all was planned before the first request came
            state = self._planned(state, state.step, moment.num_seen)
            if not _computes(state.step):
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
            if tokens or not _computes(state.step):
                return

    def _done(self, state: _State, num_seen: int) -> tuple[_State, frozenset[tuple[int, bool]]]:
        """The state after the next step, and the first and last tokens that it yields."""
        requests, step, number = self._requests, state.step, state.num_steps
        decodes, tokens, squares = step[:3]
        tokens, squares = tokens + decodes, squares + 2 * tokens + decodes  # every context has grown by a token
        came, joining = set[tuple[int, bool]](), []
        ended = [request for last, request in state.ending if last == number]
        for request in ended:
            context = requests.num_prompt_tokens[request] + requests.num_output_tokens[request]
            decodes, tokens, squares = decodes - 1, tokens - context, squares - context**2
        for request in (chunk.request for chunk in step.chunks if chunk.is_last):
            came.add((request, False))
            more = requests.num_output_tokens[request] - 1
            if more:
                context = requests.num_prompt_tokens[request] + 1
                decodes, tokens, squares = decodes + 1, tokens + context, squares + context**2
                joining.append((number + more, request))
            else:
                ended.append(request)
        came |= {(request, True) for request in ended}
        ending = tuple(sorted([*(entry for entry in state.ending if entry[0] != number), *joining]))
        ahead = self._planned(state._replace(ending=ending), Step(decodes, tokens, squares, ()), num_seen)
        return ahead._replace(num_steps=number + 1, num_running=ahead.num_running - len(ended)), frozenset(came)

    def _planned(self, state: _State, decoding: Step, num_seen: int) -> _State:
        """`state` with its next step: all that decode, then prompts as far as the limits go."""
        requests, chunks, prefilling = self._requests, [], []
        left = self._max_num_batched_tokens - decoding.num_decodes
        num_running, num_admitted = state.num_running, state.num_admitted
        queue = [*state.prefilling]
        while left > 0:
            if not queue:
                if num_admitted >= num_seen or num_running >= self._max_num_seqs:
                    break
                queue.append((num_admitted, requests.num_cached_tokens[num_admitted]))
                num_running, num_admitted = num_running + 1, num_admitted + 1
            request, start = queue.pop(0)
            length = requests.num_prompt_tokens[request]
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


def _computes(step: Step) -> bool:
    return bool(step.num_decodes or step.chunks)


def recover(config: RunConfig, run: MeasuredRun, graph_sizes: Iterable[int]) -> tuple[Requests, list[Span]]:
    """The steps of `run`, an engine with the limits of `config`; its cost model tells one way from another.

    Where no way is found, what the best one took for decodes up to there, by the size to which they are padded, is
    added to the prices, and it is searched again.

    Raises:
        NoWayError: there is none.
    """
    engine = SimulatedEngine(config, run.trace, make_arrivals(run.trace, config.arrival, np.random.default_rng(0)))
    engine.run()
    cached = engine.recorder.tables(run.trace, engine.unfinished()).requests["num_cached_tokens"]
    requests = Requests.of(run, cached.astype(int).tolist())
    price, sizes = priced_by(cost_model(config)), sorted(graph_sizes)

    def padded(step: Step) -> int | None:
        return None if step.chunks else next((size for size in sizes if size >= step.num_decodes), None)

    def learning(more: Mapping[int, float], passes: int) -> list[Span]:
        def corrected(step: Step) -> float:
            return price(step) + more.get(padded(step) or 0, 0.0)

        try:
            return _Search(requests, config.max_num_seqs, config.max_num_batched_tokens, corrected).run()
        except NoWayError as error:
            if passes == 1:
                raise
            return learning(_learned(error.way.spans()[1:], price, padded), passes - 1)

    return requests, learning({}, _MOST_PASSES)


def _learned(
    spans: Iterable[Span], price: Callable[[Step], float], padded: Callable[[Step], int | None]
) -> Mapping[int, float]:
    """By padded size, what decode steps took beyond their prices, ns; of spans of one size alone."""
    beyond: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for span in spans:
        kinds = {padded(step) for step in span.steps}
        if len(kinds) == 1 and (size := kinds.pop()) is not None:
            beyond[size][0] += span.time_ns - sum(map(price, span.steps))
            beyond[size][1] += len(span.steps)
    return {size: total / count for size, (total, count) in beyond.items()}


def priced_by(cost: CostModel) -> Callable[[Step], float]:
    """What a cost model says that a step takes, in ns; said once for equal steps."""
    known: dict[Step, int] = {}

    def price(step: Step) -> float:
        if step not in known:
            known[step] = cost.step_ns(_plan(step))
        return known[step]

    return price


def _plan(step: Step) -> StepPlan:
    """As much of a plan as cost models look at."""
    chunks = [PrefillChunk(None, *chunk[1:]) for chunk in step.chunks]  # type: ignore[arg-type]
    return StepPlan(chunks, [], *step[:3], [], [], [], [], [], 1, 1, step.num_decodes + len(chunks), 0, 0)


class _Given:
    """Cost model that hands out the given times of steps in order, and then one that is longer than any run."""

    def __init__(self, times_ns: Iterable[int]) -> None:
        self._times = iter(times_ns)

    def step_ns(self, plan: StepPlan) -> int:
        return next(self._times, _NEVER_NS)

    def decode_ns(self, plan: StepPlan, num_steps: int) -> Ints:
        raise AssertionError("every step is taken on its own")


def replay(config: RunConfig, run: MeasuredRun, requests: Requests, spans: Iterable[Span]) -> Ints:
    """Serve the requests of `run` with our scheduling core, at the times at which they were taken in, its steps as long
    as recovered (those of a span in proportion to their prices).

    Returns: int64[2, requests], how much later than measured first and last tokens came, in ns.
    """
    price, times = priced_by(cost_model(config)), list[int]()
    for span in spans:
        prices = np.array([price(step) for step in span.steps])
        ends = np.rint(prices.cumsum() * (span.time_ns / prices.sum())) if len(prices) else prices
        times += np.diff(ends, prepend=0.0).astype(np.int64).tolist()
    trace = replace(run.trace, table=run.trace.table.assign(arrival_time=requests.seen_ns * 1e-9))
    stepwise = config.model_copy(update={"engine": config.engine.model_copy(update={"compress": False})})
    arrivals = make_arrivals(trace, config.arrival, np.random.default_rng(0))
    engine = SimulatedEngine(stepwise, trace, arrivals, _Given(times))
    engine.run()
    served = engine.recorder.tables(trace, engine.unfinished()).requests
    came = {token: moment.time_ns for moment in requests.moments for token in moment.tokens}
    return np.array(
        [
            [ours - came[i, is_last] for i, ours in enumerate(whole_ns(served[name]))]
            for is_last, name in ((False, "first_token_time"), (True, "finish_time"))
        ]
    )
