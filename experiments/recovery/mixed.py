"""Recovers the steps of a vLLM run with mixed batches from its per-request log.

In the clock of the engine core, the log has the times at which each request was received and at which its first and
last token came. Each of these moments is the end of a step. The log does not say how many steps lie between two
moments, nor what they compute. Once the number of steps is known, vLLM's rules determine the rest: which requests
decode, which chunks of prompts are computed, which requests are admitted. The search goes from moment to moment, tries
every number of steps that a cost model does not find impossible, and keeps the paths on which every first and last
token comes from the step that ends at its time.

The rules are restated here as briefly as a search permits: first come, first served; chunked prefill; asynchronous
scheduling, so a step is planned when the step before it starts. KV blocks are left out: for a run in which requests
wait for blocks or are preempted, the search finds no steps or wrong ones. The tokens that prompts find in the prefix
cache come from a simulation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from experiments.recovery.path_search import NoPathError, Recovered, Tolerance, best_path
from experiments.recovery.request_log import Moment, RequestLog, Token
from experiments.recovery.steps import Chunk, Price, Span, Step

_TOLERANCE = Tolerance(share=0.02, fixed_ns=700_000, absurd_share=0.12, absurd_ns=1_000_000)
_MOST_PASSES = 8


class _State(NamedTuple):
    """The state of the engine at a moment.

    Attributes:
        num_steps: steps so far.
        num_running: requests that count as running when the step after the next one is planned.
        num_admitted: requests that are or were running.
        prefilling: (request, computed tokens) of requests with prompt tokens left.
        ending: (step, request) for each decoding request: the step in which it gets its last token.
        step: the next step; computes nothing if the engine is idle.
    """

    num_steps: int
    num_running: int
    num_admitted: int
    prefilling: tuple[tuple[int, int], ...]
    ending: tuple[tuple[int, int], ...]
    step: Step


class _Search:
    """Finds the steps of a log; `cached` is the number of tokens that each prompt finds in the prefix cache."""

    def __init__(
        self, log: RequestLog, cached: Sequence[int], max_num_seqs: int, max_num_batched_tokens: int, price: Price
    ) -> None:
        self._log = log
        self._cached = cached
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._price = price

    def run(self) -> tuple[list[Span], float]:
        """As `best_path`."""
        start = _State(0, 0, 0, (), (), Step(0, 0, 0, ()))
        return best_path(self._log.moments, start, self._ahead, _TOLERANCE)

    def _ahead(
        self, state: _State, moment: Moment, following: Moment, tolerance: Tolerance
    ) -> Iterable[tuple[_State, tuple[Step, ...], float]]:
        time, priced = following.time_ns - moment.time_ns, 0.0
        steps: tuple[Step, ...] = ()
        if not state.step.computes:  # idle
            state = self._planned(state, state.step, moment.num_seen)
            if not state.step.computes:
                if not following.tokens:
                    yield state, (), 0.0
                return
        while True:
            price = self._price(state.step)
            steps, priced = (*steps, state.step), priced + price
            misfit = tolerance.misfit(time, priced, price)
            if priced > time and math.isinf(misfit):
                return
            state, tokens = self._done(state, moment.num_seen)
            if tokens == following.tokens and not math.isinf(misfit):
                yield state, steps, misfit
            if tokens or not state.step.computes:
                return

    def _done(self, state: _State, num_seen: int) -> tuple[_State, frozenset[Token]]:
        """The state after the next step, and the first and last tokens that the step yields."""
        log, number, chunks = self._log, state.num_steps, state.step.chunks
        decodes, tokens, squares, _ = state.step.next_decodes
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
        # While the next step was planned, the requests that end now still counted as running.
        return ahead._replace(num_steps=number + 1, num_running=ahead.num_running - len(ended)), frozenset(came)

    def _planned(self, state: _State, decoding: Step, num_seen: int) -> _State:
        """`state` with its next step: all decodes, then prompts up to the limits."""
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


def recover_mixed(
    log: RequestLog, cached: Sequence[int], limits: tuple[int, int], price: Price, graph_sizes: Sequence[int]
) -> Recovered:
    """The steps of an engine with `limits` max_num_seqs and max_num_batched_tokens.

    `cached` is the number of tokens that each prompt finds in the prefix cache. Where no path is found, the search
    starts again with corrected prices of decode steps: for each CUDA graph (`graph_sizes`) the correction is the mean
    error of its steps on the best path so far.

    Raises:
        NoPathError: no steps agree with the log.
    """

    def learning(beyond: Mapping[int | None, float], passes: int) -> Recovered:
        def corrected(step: Step) -> float:
            return price(step) + beyond.get(graph_of(step, graph_sizes), 0.0)

        try:
            return Recovered(*_Search(log, cached, *limits, corrected).run(), price)
        except NoPathError as error:
            if passes == 1:
                raise
            return learning(_beyond_prices(error.spans[1:], price, graph_sizes), passes - 1)

    return learning({}, _MOST_PASSES)


def graph_of(step: Step, sizes: Sequence[int]) -> int | None:
    """The size of the CUDA graph, out of `sizes`, that serves a decode step; None for other steps."""
    return None if step.chunks else next((size for size in sizes if size >= step.num_decodes), None)


def _beyond_prices(spans: Iterable[Span], price: Price, graph_sizes: Sequence[int]) -> Mapping[int | None, float]:
    """By CUDA graph, the mean time of decode steps beyond their price in ns, over spans that one graph served."""
    totals: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for span in spans:
        graphs = {graph_of(step, graph_sizes) for step in span.steps}
        if len(graphs) == 1 and (size := graphs.pop()) is not None:
            totals[size][0] += span.time_ns - sum(map(price, span.steps))
            totals[size][1] += len(span.steps)
    return {size: total / count for size, (total, count) in totals.items()}
