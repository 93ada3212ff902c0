"""The steps of a real vLLM run, recovered from its per-request log.

By the clock of the engine core such a log says when each request was taken in, and when its first and its last token
came. Each of these is the end of a step, but how many steps lie between two of them it does not say, nor what was in
them. vLLM's rules do, once that number is known: which requests decode, which chunks of prompts are computed, who is
admitted. So it is searched for: from one known moment to the next, with every number of steps that a cost model does
not find absurd, keeping only ways on which every first and last token falls due in the very step that ends at its time.

The rules are restated here in as few lines as a search needs: requests first come, first served; chunked prefill;
asynchronous scheduling, so a step is planned when the one before it starts. Left out are KV blocks: of a run in which
requests wait for them, or are preempted, no steps or wrong ones are found. What prompts find in the prefix cache is
taken from a simulation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from experiments.recovery.request_log import Moment, RequestLog, Token
from experiments.recovery.step_search import (
    Chunk,
    NoWayError,
    Price,
    Recovered,
    Span,
    Step,
    Tolerance,
    best_way,
)

_TOLERANCE = Tolerance(share=0.02, fixed_ns=700_000, absurd_share=0.12, absurd_ns=1_000_000)
_MOST_PASSES = 8


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

    def run(self) -> tuple[list[Span], float]:
        """As `best_way`."""
        start = _State(0, 0, 0, (), (), Step(0, 0, 0, ()))
        return best_way(self._log.moments, start, self._ahead, _TOLERANCE)

    def _ahead(
        self, state: _State, moment: Moment, following: Moment, tolerance: Tolerance
    ) -> Iterable[tuple[_State, tuple[Step, ...], float]]:
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
            misfit = tolerance.misfit(time, priced, price)
            if priced > time and math.isinf(misfit):
                return
            state, tokens = self._done(state, moment.num_seen)
            if tokens == following.tokens and not math.isinf(misfit):
                yield state, steps, misfit
            if tokens or not state.step.computes:
                return

    def _done(self, state: _State, num_seen: int) -> tuple[_State, frozenset[Token]]:
        """The state after the next step, and the first and last tokens that it yields."""
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


def recover_mixed(
    log: RequestLog, cached: Sequence[int], limits: tuple[int, int], price: Price, graph_sizes: Sequence[int]
) -> Recovered:
    """The steps of an engine with these `limits`, max_num_seqs and max_num_batched_tokens; `cached` is what prompts
    find in the prefix cache, in tokens.

    Where no way is found, the prices of decodes are corrected by what they took on the best way up to there, by the
    CUDA graph, of `graph_sizes`, that serves them, and it is searched again.

    Raises:
        NoWayError: no steps agree with the log.
    """

    def learning(beyond: Mapping[int | None, float], passes: int) -> Recovered:
        def corrected(step: Step) -> float:
            return price(step) + beyond.get(graph_of(step, graph_sizes), 0.0)

        try:
            return Recovered(*_Search(log, cached, *limits, corrected).run(), price)
        except NoWayError as error:
            if passes == 1:
                raise
            return learning(_beyond_prices(error.spans[1:], price, graph_sizes), passes - 1)

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
