"""The steps of a run of an early vLLM, whose prompts are computed whole, alone and first, from its per-request log.

Each prompt step yields first tokens and each request decodes in every other step until its last, so a log that tells
when first and last tokens came leaves open only how many decode steps came before each prompt step, and most of these
numbers follow from how many tokens each request got. What is left is searched for, with prices that are linear in what
a step does. They are fitted to the requests, as far as what was computed between their tokens is known without the
steps, and then to the steps found.

Left out is preemption: of a run in which requests start over, no steps or wrong ones are found. Waiting for KV blocks
is not decided here but seen, as prompts that come later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack, identity

from experiments.recovery.request_log import LogError, Moment, RequestLog
from experiments.recovery.step_search import Chunk, NoWayError, Price, Recovered, Span, Step, Tolerance, best_way, timed
from harness.results.metrics import Floats

_TOLERANCE = Tolerance(share=0.05, fixed_ns=4_000_000, absurd_share=0.2, absurd_ns=5_000_000, stall_ns=150_000_000)
_MOST_PASSES = 8
_LEAST_SPANS = 10  # to fit prices to
_UNSURE_NS = 15_000_000  # how far off the times at which requests are taken in and steps within spans begin may be


class _State(NamedTuple):
    """Where the engine stands at a moment.

    Attributes:
        num_steps: steps so far.
        decoding: how many tokens are left for each request that decodes, and which it is, in ascending order.
    """

    num_steps: int
    decoding: tuple[tuple[int, int], ...]


class _Search:
    """Finds the steps of a log."""

    def __init__(self, log: RequestLog, price: Price) -> None:
        self._log = log
        self._price = price

    def run(self) -> tuple[list[Span], float]:
        """As `best_way`."""
        return best_way(self._log.moments, _State(0, ()), self._ahead, _TOLERANCE)

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
        until_last = state.decoding[0][0] if state.decoding else 0  # a last token comes with it: at a moment
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
        """The state after so many decode steps and, if there are any, a prompt step with `firsts`; and who ended."""
        left = [(count - num_steps, request) for count, request in state.decoding]
        left += [(self._log.num_output_tokens[request] - 1, request) for request in firsts]
        decoding = tuple(sorted(entry for entry in left if entry[0]))
        ended = {request for count, request in left if not count}
        return _State(state.num_steps + num_steps + bool(firsts), decoding), ended


def recover_prefill_first(log: RequestLog, *, pads_prompts: bool) -> Recovered:
    """The steps of an engine that pads the prompts of a step to the longest of them, or does not; searched for again
    with the prices that fit those found, as long as that finds others.

    Raises:
        LogError: no steps agree with the log, or it tells of too few tokens to know what steps take.
    """
    price, recovered = _of_requests(log, pads_prompts), None
    spans: list[Span] = []
    for passes_left in reversed(range(_MOST_PASSES)):
        before = spans
        try:
            spans, margin = _Search(log, price).run()
        except NoWayError as error:
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


def as_taken_in(log: RequestLog, found: Recovered) -> RequestLog:
    """`log` with the times at which requests were taken in, where they can be told better than by when they were sent:
    before their prompts were computed, and after the step before was planned unless it was planned much later."""
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
    """Prices that fit the times from the requests' first to their last tokens: between these each of them decoded once
    for each token, prompts were computed where first tokens came, and contexts grew about evenly in time."""
    length, more = np.array(log.num_prompt_tokens), np.array(log.num_output_tokens) - 1
    times = np.array([moment.time_ns for moment in log.moments])
    prompts = [sorted(request for request, is_last in moment.tokens if not is_last) for moment in log.moments]
    prompt_does = np.array(
        [_does(Step(0, 0, 0, _prompts(log, firsts)), pads_prompts) if firsts else (0,) * 4 for firsts in prompts]
    )
    starts, ends = (np.searchsorted(times, came, side="right") for came in (log.first_token_ns, log.last_token_ns))
    took, contexts = log.last_token_ns - log.first_token_ns, np.zeros(len(times))
    decoding = np.flatnonzero(ends > starts)  # of others all tokens came at one moment
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
    fitted[:, 0] += fitted[:, 2]  # too few of them to tell prompt steps from others
    each, token, _, prompt_token = _constants(fitted * (1, 1, 0, 1), np.array(taken))
    return _linear((each, token, each, prompt_token), pads_prompts)


def _of_spans(spans: Sequence[Span], pads_prompts: bool) -> Price:
    """Prices that fit the times of spans."""
    used = [span for span in spans if span.steps]
    does = [np.sum([_does(step, pads_prompts) for step in span.steps], axis=0) for span in used]
    constants = _constants(np.array(does), np.array([span.time_ns for span in used]))
    return _linear(constants, pads_prompts)


def _constants(does: Floats, times_ns: Floats) -> tuple[float, ...]:
    """ns for each thing done, with the least sum of absolute errors of `times_ns` [n], given what was done [n, 4]."""
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
    """What the price of a step is linear in: decode steps, tokens of context, prompt steps, prompt tokens."""
    if not step.chunks:
        return 1, step.num_context_tokens, 0, 0
    sizes = [chunk.num_tokens for chunk in step.chunks]
    return 0, 0, 1, max(sizes) * len(sizes) if pads_prompts else sum(sizes)
