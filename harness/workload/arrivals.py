"""When requests arrive: the `Arrivals` of an open loop, a closed loop and sessions, and which of them a run has."""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from harness.config import (
    AllAtOnceArrival,
    ArrivalConfig,
    ClosedLoopArrival,
    ConstantArrival,
    CustomArrival,
    GammaArrival,
    PoissonArrival,
    SessionsArrival,
    TraceArrival,
)
from harness.config.schema.traffic.arrivals import RECORDED
from harness.config.targets import errors_of, find
from harness.errors import ConfigError
from harness.workload.trace import Trace
from simulator.arrivals import NEVER, Arrivals, OpenLoop

Nanoseconds = npt.NDArray[np.int64]


class ClosedLoop:
    """Keeps `concurrency` requests going: all start at 0, and each that is done brings the next row."""

    def __init__(self, num_rows: int, concurrency: int) -> None:
        self._rows = iter(range(num_rows))
        self._pending: deque[tuple[int, int]] = deque()
        self.next_ns = NEVER
        for _ in range(min(concurrency, num_rows)):
            self._release(0)

    def pop_due(self, now_ns: int) -> list[tuple[int, int]]:
        pending = self._pending
        due = []
        while pending and pending[0][0] <= now_ns:
            due.append(pending.popleft())
        self.next_ns = pending[0][0] if pending else NEVER
        return due

    def on_finish(self, row: int, now_ns: int) -> None:
        self._release(now_ns)

    def _release(self, now_ns: int) -> None:
        row = next(self._rows, None)
        if row is not None:
            self._pending.append((now_ns, row))
            self.next_ns = self._pending[0][0]


class Sessions:
    """Sessions start at fixed times; each later request arrives its think time after the last of those that it waits
    for is done.

    Args:
        session_id: int64[n]; sessions start in order of their first rows.
        start_ns: int64[sessions], ascending. Rows of a session that wait for none arrive then.
        think_ns: int64[n], time a session waits before sending the row; that of rows that wait for none is not used.
        waits_for: of each row the earlier rows of its session that must be done; by default the one before it.
    """

    def __init__(
        self,
        session_id: npt.NDArray[np.int64],
        start_ns: Nanoseconds,
        think_ns: Nanoseconds,
        waits_for: Sequence[Sequence[int]] | None = None,
    ) -> None:
        if waits_for is None:
            waits_for = _rows_before(session_id)
        self._followers: dict[int, list[int]] = {}
        first_rows: dict[int, list[int]] = {}
        for row, (session, earlier) in enumerate(zip(session_id.tolist(), waits_for, strict=True)):
            for each in earlier:
                self._followers.setdefault(each, []).append(row)
            if not earlier:
                first_rows.setdefault(session, []).append(row)
        self._num_awaited = [len(earlier) for earlier in waits_for]
        self._ready_ns = [0] * len(waits_for)
        self._starts = zip(start_ns.tolist(), first_rows.values(), strict=True)
        self._think_ns: list[int] = think_ns.tolist()
        # A heap of every row on its way and the next start of a session; starts are in order, so one will do.
        self._pending: list[tuple[int, int]] = []
        self._push_start()
        self.next_ns = self._pending[0][0]

    def pop_due(self, now_ns: int) -> list[tuple[int, int]]:
        pending = self._pending
        due = []
        while pending and pending[0][0] <= now_ns:
            arrival = heappop(pending)
            due.append(arrival)
            if arrival == self._start:
                self._push_start()
        self.next_ns = pending[0][0] if pending else NEVER
        return due

    def on_finish(self, row: int, now_ns: int) -> None:
        for each in self._followers.get(row, ()):
            self._num_awaited[each] -= 1
            self._ready_ns[each] = max(self._ready_ns[each], now_ns + self._think_ns[each])
            if not self._num_awaited[each]:
                heappush(self._pending, (self._ready_ns[each], each))
                self.next_ns = self._pending[0][0]

    def _push_start(self) -> None:
        start_ns, rows = next(self._starts, (NEVER, ()))
        self._start = (start_ns, rows[0]) if rows else None
        for row in rows:
            heappush(self._pending, (start_ns, row))


def _rows_before(session_id: npt.NDArray[np.int64]) -> list[list[int]]:
    """Of each row, the row before it in its session, if there is one."""
    last: dict[int, int] = {}
    before: list[list[int]] = []
    for row, session in enumerate(session_id.tolist()):
        before.append([last[session]] if session in last else [])
        last[session] = row
    return before


def make_arrivals(trace: Trace, config: ArrivalConfig, rng: np.random.Generator) -> Arrivals:
    """The arrival process of a configuration. Drawn arrivals begin with the first request or session at 0.

    Raises:
        ConfigError: the trace lacks the times or sessions that the process goes by, or the times leave the range of
            2**62 nanoseconds (146 years).
    """
    n = len(trace.rows)
    match config:
        case TraceArrival():
            if not trace.has_times:
                raise ConfigError(
                    f"arrival=trace: trace {trace.name} has no arrival times; "
                    "choose poisson, gamma, constant, all_at_once, closed_loop or sessions"
                )
            return OpenLoop(_to_ns(trace.rows["arrival_time"].to_numpy() * config.time_scale, "time_scale"))
        case PoissonArrival():
            return OpenLoop(_from_gaps(rng.standard_exponential(n - 1), config.rate))
        case GammaArrival():
            # The gaps are left as drawn. Rescaling them so that the last request arrives at n/rate, as some tools
            # do, is no renewal process any more.
            gaps = rng.standard_gamma(config.burstiness, n - 1) / config.burstiness
            return OpenLoop(_from_gaps(gaps, config.rate))
        case ConstantArrival():
            return OpenLoop(_from_gaps(np.ones(n - 1), config.rate))
        case AllAtOnceArrival():
            return OpenLoop(np.zeros(n, dtype=np.int64))
        case ClosedLoopArrival():
            return ClosedLoop(n, config.concurrency)
        case SessionsArrival():
            return _make_sessions(trace, config, rng)
        case CustomArrival():
            return _custom(trace, config, rng)


def _custom(trace: Trace, config: CustomArrival, rng: np.random.Generator) -> Arrivals:
    """What a function of the user's own makes: an object with the methods of Arrivals, or times of an open loop."""
    key, target = "arrival.target", config.target
    function = find(key, target)
    with errors_of(key, target):
        made = function(trace=trace, rng=rng, **config.options)
        if all(hasattr(made, name) for name in ("next_ns", "pop_due", "on_finish")):
            arrivals: Arrivals = made
            return arrivals
        times = np.asarray(made, dtype=np.float64)
    if times.shape != (len(trace.rows),) or not (np.isfinite(times).all() and (np.diff(times, prepend=0.0) >= 0).all()):
        raise ConfigError(f"{key}={target!r}: must return {len(trace.rows)} times in s, ascending from 0 or later")
    return OpenLoop(_to_ns(times, "target"))


def _make_sessions(trace: Trace, config: SessionsArrival, rng: np.random.Generator) -> Sessions:
    if "session_id" not in trace.rows:
        raise ConfigError(
            f"arrival=sessions: trace {trace.name} has no sessions; choose another arrival, "
            "or a trace of conversations, e.g. trace=sharegpt trace.turns=multi"
        )
    session_id = trace.rows["session_id"].to_numpy()
    # Drawn per row beforehand, so that they do not depend on the order in which an engine finishes requests.
    starts = _from_gaps(rng.standard_exponential(len(np.unique(session_id)) - 1), config.rate)
    if config.think_time != RECORDED:
        think_times = rng.exponential(config.think_time, len(session_id))
    elif "think_time" in trace.rows:
        think_times = trace.rows["think_time"].to_numpy()
    else:
        raise ConfigError(f"arrival.think_time={RECORDED}: trace {trace.name} has no column think_time; give seconds")
    think_ns = _to_ns(think_times, "think_time")
    waits_for = [rows.tolist() for rows in trace.rows["waits_for"]] if "waits_for" in trace.rows else None
    return Sessions(session_id, starts, think_ns, waits_for)


def _from_gaps(gaps: npt.NDArray[np.float64], rate: float) -> Nanoseconds:
    """Times from 0 on, `gaps` of mean 1 apart in units of 1/rate seconds."""
    with np.errstate(over="ignore"):  # found by _to_ns
        return _to_ns(np.concatenate([[0.0], np.cumsum(gaps)]) / rate, "rate")


def _to_ns(seconds: npt.NDArray[np.float64], key: str) -> Nanoseconds:
    with np.errstate(over="ignore"):
        nanoseconds = np.rint(seconds * 1e9)
    if not (nanoseconds < NEVER).all():
        raise ConfigError(f"arrival.{key}: makes arrival times longer than 146 years")
    return nanoseconds.astype(np.int64)
