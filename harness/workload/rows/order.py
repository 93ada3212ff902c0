"""What must hold between rows: times near each other and in order, and turns of a session that build on each other."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import TraceError
from harness.workload.rows.sieve import MAX_BAD_SHARE, RowSieve

log = logging.getLogger(__name__)

FAR_OUTSIDE = "the time is far outside all others"
TURN_ORDER = "turn is not after the session's previous turn"
NOT_EARLIER = "waits_for names no earlier request of the session"
SAME_ID = "request_id is that of an earlier request"
NOT_CUMULATIVE = "the prompt is shorter than the session's previous prompt and output together"

_DAY_S, _YEAR_S = 86_400, 365 * 86_400
_SPANS = 10
_FEWEST_ROWS = 10  # fewer rows do not tell which times are far outside

Rows = npt.NDArray[np.int64]


def arrange(
    columns: Mapping[str, Any], lines: Rows, sieve: RowSieve, ticks_per_second: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The rows in order of arrival, without those that contradict the others; and notes for the reader of the results.

    Args:
        columns: of the rows that passed all other checks, in the order of the file.
        lines: number of each row in the file.
        ticks_per_second: resolution of the column `arrival_time`, if it is there.

    Raises:
        TraceError: a row is bad and the rules say to raise.
    """
    rows = np.arange(len(lines))
    notes: tuple[str, ...] = ()
    if "arrival_time" in columns:
        times = columns["arrival_time"]
        sieve.restart(lines)
        sieve.reject(far_outside(times, ticks_per_second), FAR_OUTSIDE)
        rows = sieve.finish()
        num_late = count_out_of_order(times[rows])
        if num_late:
            notes = (f"{num_late} of {len(rows)} rows were out of order in the file; all are sorted by time",)
            log.warning("%s: %s", sieve.path, *notes)
            rows = rows[np.argsort(times[rows], kind="stable")]
    if "session_id" in columns:
        sieve.restart(lines[rows])
        ordered = {name: values[rows] for name, values in columns.items()}
        if "waits_for" in columns:
            _check_waits(ordered, sieve)
        else:
            has_contents = "hash_ids" in columns or "token_ids" in columns  # which say what the prompts share
            _check_sessions(ordered, sieve, is_cumulative=not has_contents)
        rows = rows[sieve.finish()]
    return {name: values[rows] for name, values in columns.items()}, notes


def within_window(
    columns: dict[str, Any], sieve: RowSieve, ticks_per_second: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The rows, in order of arrival, that arrive in the window of the rules, and a note on it.

    Raises:
        TraceError: the rows have no times, or none is in the window.
    """
    window = sieve.rules.window
    if window is None:
        return columns, ()
    if "arrival_time" not in columns:
        raise TraceError(f"{sieve.path}: trace.window={list(window)} needs arrival times, of which there are none")
    ticks = columns["arrival_time"]
    seconds = (ticks - ticks[0] if len(ticks) else ticks) / ticks_per_second
    first, end = np.searchsorted(seconds, window)
    if first == end and len(ticks):
        raise TraceError(f"{sieve.path}: no request in trace.window={list(window)}; the last is at {seconds[-1]:g} s")
    note = f"of {len(ticks)} requests, the {end - first} from {window[0]:g} to {window[1]:g} s (trace.window)"
    return {name: values[first:end] for name, values in columns.items()}, (note,)


def count_out_of_order(times: npt.NDArray[Any]) -> int:
    """How many times are before an earlier row's."""
    return int((times < np.maximum.accumulate(times)).sum()) if len(times) else 0


def far_outside(times: npt.NDArray[Any], ticks_per_second: int) -> npt.NDArray[np.bool_]:
    """Marks times that are so far from all others that they must be damaged: bool[n].

    Sorted by time, these are the rows beyond a gap that is ten times as long as the span of the times from that gap
    inwards to the far quartile. A gap at which at most 1 % of the rows (or a single row) lie beyond must be longer than
    a day; one with up to a quarter of the rows beyond, longer than a year. So a pause overnight is never taken for
    damage, nor a weekend at the end of a day's trace, nor a second part of the trace some months later. Fewer than ten
    rows are not judged.
    """
    n = len(times)
    marked = np.zeros(n, dtype=bool)
    if n < _FEWEST_ROWS:
        return marked
    order = np.argsort(times, kind="stable")
    seconds = times[order].astype(np.longdouble) / ticks_per_second
    marked[order[n - _num_beyond(seconds) :]] = True
    marked[order[: _num_beyond(-seconds[::-1])]] = True
    return marked


def _num_beyond(ascending_s: npt.NDArray[np.longdouble]) -> int:
    """How many of the last times come after a gap as `far_outside` describes it."""
    n = len(ascending_s)
    quarter = n // 4
    before = ascending_s[-quarter - 1 : -1]
    gaps = ascending_s[-quarter:] - before
    spans = before - ascending_s[quarter]
    few_beyond = np.arange(quarter, 0, -1) <= max(1, MAX_BAD_SHARE * n)
    wide = np.flatnonzero((gaps > _SPANS * spans) & (gaps > np.where(few_beyond, _DAY_S, _YEAR_S)))
    return quarter - int(wide[0]) if len(wide) else 0


def _check_sessions(columns: Mapping[str, Any], sieve: RowSieve, *, is_cumulative: bool) -> None:
    """Row by row, because a row is compared with the usable rows of its session before it."""
    n = len(sieve.usable)
    sessions = columns["session_id"].tolist()
    turns = columns["turn"].tolist() if "turn" in columns else None
    prompts = columns["num_prompt_tokens"].tolist()
    totals = (columns["num_prompt_tokens"] + columns["num_output_tokens"]).tolist()
    last: dict[int, tuple[int, int]] = {}  # session -> turn and total tokens of its last usable row
    bad: dict[str, list[int]] = {TURN_ORDER: [], NOT_CUMULATIVE: []}
    for row in range(n):
        last_turn, last_total = last.get(sessions[row], (-1, 0))
        turn = last_turn + 1 if turns is None else turns[row]
        if turn <= last_turn:
            bad[TURN_ORDER].append(row)
        elif is_cumulative and prompts[row] < last_total:
            bad[NOT_CUMULATIVE].append(row)
        else:
            last[sessions[row]] = (turn, totals[row])
    _reject(bad, sieve)


def _check_waits(columns: Mapping[str, Any], sieve: RowSieve) -> None:
    """Row by row, because a request waits for usable ones before it: so there is an order in which all can be sent."""
    session_of: dict[int, int] = {}  # request id -> session
    bad: dict[str, list[int]] = {SAME_ID: [], NOT_EARLIER: []}
    rows = zip(columns["request_id"].tolist(), columns["session_id"].tolist(), columns["waits_for"], strict=True)
    for row, (number, session, waits_for) in enumerate(rows):
        if number in session_of:
            bad[SAME_ID].append(row)
        elif any(session_of.get(each) != session for each in waits_for.tolist()):
            bad[NOT_EARLIER].append(row)
        else:
            session_of[number] = session
    _reject(bad, sieve)


def _reject(bad: Mapping[str, list[int]], sieve: RowSieve) -> None:
    for reason, rows in bad.items():
        mask = np.zeros(len(sieve.usable), dtype=bool)
        mask[rows] = True
        sieve.reject(mask, reason)
