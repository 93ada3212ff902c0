"""Recovers the steps of an early vLLM, which computes prompts whole, alone and first, from its per-request log.

Each prompt step yields first tokens, and each request decodes in every decode step until its last token. So a log with
the times of first and last tokens leaves open only how many decode steps precede each prompt step, and most of these
numbers follow from the numbers of output tokens. A search finds the rest, with prices that are linear in the work of a
step. The prices are first fitted to the decode times of requests, and then to the spans that the search finds.

Preemption is left out: for a run in which requests start over, the search finds no steps or wrong ones. Waiting for KV
blocks needs no rule: it shows as prompt steps that come later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack, identity

from experiments.recovery.path_search import NoPathError, Recovered, Tolerance, best_path
from experiments.recovery.request_log import LogError, Moment, RequestLog
from experiments.recovery.steps import Chunk, Price, Span, Step, timed
from harness.results.tables import Floats

_TOLERANCE = Tolerance(share=0.05, fixed_ns=4_000_000, absurd_share=0.2, absurd_ns=5_000_000, stall_ns=150_000_000)
_MOST_PASSES = 8
_LEAST_SPANS = 10  # fewer spans are too few to fit prices to
_UNSURE_NS = 15_000_000  # uncertainty of the times at which requests are received and at which steps in a span begin


class _State(NamedTuple):
    """The state of the engine at a moment.

    Attributes:
        num_steps: steps so far.
        decoding: (tokens left, request) for each decoding request, in ascending order.
    """

    num_steps: int
    decoding: tuple[tuple[int, int], ...]


class _Search:
    """Finds the steps of a log."""

    def __init__(self, log: RequestLog, price: Price) -> None:
        self._log = log
        self._price = price

    def run(self) -> tuple[list[Span], float]:
        """As `best_path`."""
        return best_path(self._log.moments, _State(0, ()), self._ahead, _TOLERANCE)

    def _ahead(
        self, state: _State, moment: Moment, following: Moment, tolerance: Tolerance
    ) -> Iterable[tuple[_State, tuple[Step, ...], float]]:
        time, priced = following.time_ns - moment.time_ns, 0.0
        steps: tuple[Step, ...] = ()
        firsts = sorted(request for request, is_last in following.tokens if not is_last)
        lasts = {request for request, is_last in following.tokens if is_last}
        if not following.tokens:
            if not state.decoding:
                yield state, (), 0.0
            return
        prompts, decodes = Step(0, 0, 0, _prompts(self._log, firsts)), self._decodes(state)
        last_price = self._price(prompts if firsts else decodes)
        until_last = state.decoding[0][0] if state.decoding else 0  # a last token ends the span
        for num_steps in range(until_last + 1):
            misfit = tolerance.misfit(time, priced + (last_price if firsts else 0.0), last_price)
            if not math.isinf(misfit):
                after, ended = self._after(state, num_steps, firsts)
                if ended == lasts:
                    yield after, (*steps, prompts) if firsts else steps, misfit
            price = self._price(decodes)
            steps, priced = (*steps, decodes), priced + price
            if priced > time and math.isinf(tolerance.misfit(time, priced, last_price)):
                return
            decodes = decodes.next_decodes

    def _decodes(self, state: _State) -> Step:
        contexts = [
            self._log.num_prompt_tokens[request] + self._log.num_output_tokens[request] - left
            for left, request in state.decoding
        ]
        return Step(len(contexts), sum(contexts), sum(context**2 for context in contexts), ())

    def _after(self, state: _State, num_steps: int, firsts: Sequence[int]) -> tuple[_State, set[int]]:
        """The state after `num_steps` decode steps and, with `firsts`, a prompt step; and the requests that ended."""
        left = [(count - num_steps, request) for count, request in state.decoding]
        left += [(self._log.num_output_tokens[request] - 1, request) for request in firsts]
        decoding = tuple(sorted(entry for entry in left if entry[0]))
        ended = {request for count, request in left if not count}
        return _State(state.num_steps + num_steps + bool(firsts), decoding), ended


def recover_prefill_first(log: RequestLog, *, pads_prompts: bool) -> Recovered:
    """The steps of an engine that pads the prompts of a step to the longest of them (`pads_prompts`), or does not.

    Searches again with prices fitted to the spans of the last search until the spans no longer change.

    Raises:
        LogError: no steps agree with the log, or it has too few tokens to fit prices to.
    """
    price, recovered = _of_requests(log, pads_prompts), None
    spans: list[Span] = []
    for passes_left in reversed(range(_MOST_PASSES)):
        before = spans
        try:
            spans, margin = _Search(log, price).run()
        except NoPathError as error:
            if recovered is not None:
                break
            spans = error.spans
            if spans == before or len(spans) < _LEAST_SPANS or not passes_left:
                raise
        else:
            recovered = Recovered(spans, margin, price)
            if spans == before or len(spans) < _LEAST_SPANS:
                break
        price = _of_spans(spans[1:], pads_prompts)
    assert recovered is not None, "or the last pass would have raised"
    return recovered


def with_receipt_times(log: RequestLog, found: Recovered) -> RequestLog:
    """`log` with corrected times of receipt: a request was received before its prompt was computed, and after the step
    before that was planned, unless that step was planned much later than the request was sent."""
    seen, before = log.seen_ns.copy(), 0
    for step, start, _ in timed(found.spans, found.price):
        for chunk in step.chunks:
            request = chunk.request
            if before - seen[request] < _UNSURE_NS:
                seen[request] = max(seen[request], before + 1)
            seen[request] = min(seen[request], start)
        before = start
    return replace(log, seen_ns=np.minimum.accumulate(seen[::-1])[::-1])


def _of_requests(log: RequestLog, pads_prompts: bool) -> Price:
    """Prices fitted to the times from the first to the last token of each request.

    In that time the request decoded once per token, the prompts of all first tokens that came were computed, and
    contexts grew about evenly.
    """
    length, more = np.array(log.num_prompt_tokens), np.array(log.num_output_tokens) - 1
    times = np.array([moment.time_ns for moment in log.moments])
    prompts = [sorted(request for request, is_last in moment.tokens if not is_last) for moment in log.moments]
    prompt_does = np.array(
        [_does(Step(0, 0, 0, _prompts(log, firsts)), pads_prompts) if firsts else (0,) * 4 for firsts in prompts]
    )
    starts, ends = (np.searchsorted(times, came, side="right") for came in (log.first_token_ns, log.last_token_ns))
    took, contexts = log.last_token_ns - log.first_token_ns, np.zeros(len(times))
    decoding = np.flatnonzero(ends > starts)  # all tokens of the other requests came at one moment
    for request in decoding:
        within = slice(starts[request], ends[request])
        grown = (times[within] - log.first_token_ns[request]) / took[request]
        contexts[within] += length[request] + more[request] * grown
    does, taken = [], []
    for request in decoding:
        within = slice(starts[request], ends[request])
        context = np.average(contexts[within], weights=np.diff(times, prepend=0)[within])
        does.append(np.array([more[request], more[request] * context, 0, 0]) + prompt_does[within].sum(axis=0))
        taken.append(took[request])
    if not does:
        raise LogError("no request has tokens that came one after the other")
    fitted = np.array(does)
    fitted[:, 0] += fitted[:, 2]  # prompt steps are too few to have a price of their own
    each, token, _, prompt_token = _constants(fitted * (1, 1, 0, 1), np.array(taken))
    return _linear((each, token, each, prompt_token), pads_prompts)


def _of_spans(spans: Sequence[Span], pads_prompts: bool) -> Price:
    """Prices fitted to the times of spans."""
    used = [span for span in spans if span.steps]
    does = [np.sum([_does(step, pads_prompts) for step in span.steps], axis=0) for span in used]
    constants = _constants(np.array(does), np.array([span.time_ns for span in used]))
    return _linear(constants, pads_prompts)


def _constants(does: Floats, times_ns: Floats) -> tuple[float, ...]:
    """Constants in ns with the least sum of absolute errors of does [n, 4] @ constants against `times_ns` [n]."""
    scale, unit = np.maximum(does.max(axis=0), 1.0), float(times_ns.max())
    # minimise sum(over + under) such that does @ constants + under - over = times, all of them at least 0
    costs = np.concatenate([np.zeros(does.shape[1]), np.ones(2 * len(times_ns))])
    each = identity(len(times_ns), format="csr")
    equalities = hstack([csr_array(does / scale), each, -each], format="csr")
    solved = linprog(costs, A_eq=equalities, b_eq=times_ns / unit)
    if not solved.success:
        raise LogError(f"no prices of steps fit the log: {solved.message}")
    return tuple((solved.x[: does.shape[1]] * unit / scale).tolist())


def _linear(constants: tuple[float, ...], pads_prompts: bool) -> Price:
    each, token, each_prompt, prompt_token = constants

    def price(step: Step) -> float:
        if not step.chunks:
            return max(1.0, each + token * step.num_context_tokens)
        return max(1.0, each_prompt + prompt_token * _does(step, pads_prompts)[3])

    return price


def _prompts(log: RequestLog, requests: Iterable[int]) -> tuple[Chunk, ...]:
    return tuple(Chunk(request, 0, log.num_prompt_tokens[request], True) for request in requests)


def _does(step: Step, pads_prompts: bool) -> tuple[int, int, int, int]:
    """The work of a step, in which its price is linear: decode steps, context tokens, prompt steps, prompt tokens."""
    if not step.chunks:
        return 1, step.num_context_tokens, 0, 0
    sizes = [chunk.num_tokens for chunk in step.chunks]
    return 0, 0, 1, max(sizes) * len(sizes) if pads_prompts else sum(sizes)
