"""The moments in a per-request log at which a step ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.errors import MeasuredRunError
from harness.measured.measured_run import MeasuredRun, whole_ns

Ints = npt.NDArray[np.int64]
Token = tuple[int, bool]
"""A request's first (False) or last (True) token."""

# Events closer than this belong to the end of the same step. No step is as short in the engine's clock; a client
# receives the tokens of a step one after the other.
_TOGETHER_NS = 600_000
_CLIENT_TOGETHER_NS = 8_000_000
_CLIENT_DELAY_NS = 8_000_000  # longest time from the client's sending of a request until the engine knows it


class LogError(MeasuredRunError):
    """The log lacks data, or records something that the rules of the search do not cover."""


class Moment(NamedTuple):
    """The end of a step, or the receipt of a request by an idle engine.

    Attributes:
        time_ns: since the first moment.
        tokens: first and last tokens that came.
        num_seen: how many of the requests whose receipt is a moment the engine had received.
    """

    time_ns: int
    tokens: frozenset[Token]
    num_seen: int


@dataclass(frozen=True, eq=False)
class RequestLog:
    """Requests in order of arrival.

    Attributes:
        num_prompt_tokens, num_output_tokens: by request.
        moments: in order.
        seen_ns: int64[requests], when the engine received each request.
        scheduled_ns, first_token_ns, last_token_ns: int64[requests], measured, in the clock of the moments. A request
            is scheduled when the step with its first chunk is planned; None if the log does not record that.
    """

    num_prompt_tokens: list[int]
    num_output_tokens: list[int]
    moments: list[Moment]
    seen_ns: Ints
    scheduled_ns: Ints | None
    first_token_ns: Ints
    last_token_ns: Ints


def read_engine_log(run: MeasuredRun) -> RequestLog:
    """The log of `run` in the clock of the engine core.

    The engine receives requests after it has sent the tokens of a step, and records them as queued a little later. A
    request that was queued within 0.6 ms after a token was received at the time of the token; every other request was
    received before its queue time by the median of those delays. Requests that reach an idle engine within 0.6 ms were
    received together.

    Raises:
        LogError: a time is missing, or requests were received in another order than they arrived.
    """
    queued, scheduled, first, last = _times(
        run, ("queued_time", "first_scheduled_time", "first_token_time", "finish_time")
    )
    if (np.diff(queued) < 0).any():
        raise LogError(f"{run.source}: requests were received in another order than they arrived")
    seen = _seen(queued, np.unique(np.concatenate([first, last])))
    moments = _together(seen, first, last, _TOGETHER_NS)
    num_new = np.diff([0, *(moment.num_seen for moment in moments)])
    seen = np.repeat(np.array([moment.time_ns for moment in moments], np.int64), num_new)
    return _since_first(run, moments, seen, scheduled, first, last)


def read_client_log(run: MeasuredRun) -> RequestLog:
    """The log of `run` in the clock of a client, which sends requests and receives tokens.

    A request counts as received by the engine 8 ms after it was sent, or just before its first token. Moments are the
    times at which tokens came, and at which a request reached an idle engine. Tokens within 8 ms count as tokens of one
    step, so steps must take longer than that, and the first step after an idle time longer than 16 ms.

    Raises:
        LogError: a time is missing.
    """
    sent, first, last = _times(run, ("arrival_time", "first_token_time", "finish_time"))
    latest = np.maximum.accumulate(np.concatenate([[-1], last[:-1]]))
    seen = np.minimum(sent + _CLIENT_DELAY_NS, first - 1)
    moments = _together(seen[latest < sent], first, last, _CLIENT_TOGETHER_NS)
    return _since_first(run, moments, seen, None, first, last)


def _times(run: MeasuredRun, names: Sequence[str]) -> list[Ints]:
    """Columns of the requests table in ns; raises LogError if a value is missing."""
    if lacking := [name for name in names if run.requests[name].isna().any()]:
        raise LogError(f"{run.source}: no {', '.join(lacking)} of some requests")
    return [whole_ns(run.requests[name]) for name in names]


def _since_first(
    run: MeasuredRun, moments: Sequence[Moment], seen: Ints, scheduled: Ints | None, first: Ints, last: Ints
) -> RequestLog:
    """Everything in ns since the first moment."""
    start = moments[0].time_ns
    return RequestLog(
        run.requests["num_prompt_tokens"].tolist(),
        run.requests["num_output_tokens"].tolist(),
        [moment._replace(time_ns=moment.time_ns - start) for moment in moments],
        seen - start,
        None if scheduled is None else scheduled - start,
        first - start,
        last - start,
    )


def _seen(queued_ns: Ints, token_ns: Ints) -> Ints:
    """When requests that were queued at `queued_ns` were received, given the times of tokens in ascending order."""
    before = token_ns[np.maximum(np.searchsorted(token_ns, queued_ns, side="right") - 1, 0)]
    delays = queued_ns - before
    follows = (delays >= 0) & (delays < _TOGETHER_NS)
    usual = int(np.median(delays[follows])) if follows.any() else 0
    seen: Ints = np.where(follows, before, queued_ns - usual)
    return seen


def _together(seen_ns: Ints, first_ns: Ints, last_ns: Ints, together_ns: int) -> list[Moment]:
    """Moments that are more than `together_ns` apart."""
    events: list[tuple[int, Token | None]] = [(int(time), None) for time in seen_ns]
    events += [(int(time), (i, False)) for i, time in enumerate(first_ns)]
    events += [(int(time), (i, True)) for i, time in enumerate(last_ns)]
    events.sort(key=lambda event: event[0])
    starts = [i for i, (time, _) in enumerate(events) if i == 0 or time - events[i - 1][0] > together_ns]
    found, num_seen = [], 0
    for i, j in zip(starts, [*starts[1:], len(events)], strict=True):
        group: Sequence[tuple[int, Token | None]] = events[i:j]
        num_seen += sum(token is None for _, token in group)
        time = next((time for time, token in group if token is not None), group[0][0])
        found.append(Moment(time, frozenset(token for _, token in group if token is not None), num_seen))
    return found
