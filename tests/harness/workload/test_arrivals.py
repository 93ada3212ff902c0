"""Arrival processes: every row once and in order, closed loops, sessions, and the statistics of drawn arrivals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import (
    AllAtOnceArrival,
    ArrivalConfig,
    ClosedLoopArrival,
    ConstantArrival,
    GammaArrival,
    PoissonArrival,
    SessionsArrival,
    TraceArrival,
)
from harness.errors import ConfigError
from harness.workload.arrivals import ClosedLoop, OpenLoop, Sessions, make_arrivals
from harness.workload.trace import Trace, trace_table
from simulator.arrivals import NEVER
from tests.harness.workload.builders import SECOND, Event, drive
from tests.selection import few


def make_trace(num_rows: int, **columns: list[float]) -> Trace:
    lengths = {"num_prompt_tokens": [8] * num_rows, "num_output_tokens": [2] * num_rows}
    return Trace("test", trace_table(lengths | columns), "test")


services = st.lists(st.integers(0, 5), min_size=1, max_size=40)
lateness = st.integers(0, 3)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40).map(sorted), lateness)
def test_open_loop_hands_out_every_row_once_in_order(times: list[int], late_ns: int) -> None:
    arrived, _ = drive(OpenLoop(np.array(times)), [3] * len(times), late_ns)
    assert arrived == list(zip(times, range(len(times)), strict=True))


@given(services, st.integers(1, 8), lateness)
def test_closed_loop_keeps_its_concurrency(service_ns: list[int], concurrency: int, late_ns: int) -> None:
    arrived, finished = drive(ClosedLoop(len(service_ns), concurrency), service_ns, late_ns)
    assert [row for _, row in arrived] == list(range(len(service_ns)))
    assert arrived == sorted(arrived)
    assert [time for time, _ in arrived[:concurrency]] == [0] * min(concurrency, len(service_ns))
    for released, (time, _) in enumerate(arrived[concurrency:], 1):
        assert sorted(finished.values())[released - 1] == time  # as soon as one is done, and not before
    for time, _ in arrived:
        assert sum(begin <= time for begin, row in arrived if finished[row] > time) <= concurrency


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int]]:
    session_id = draw(st.lists(st.integers(0, 6), min_size=1, max_size=40))
    n = len(session_id)
    starts = sorted(draw(st.lists(st.integers(0, 30), min_size=len(set(session_id)), max_size=len(set(session_id)))))
    think = draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
    service = draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    return session_id, starts, think, service


@given(conversations(), lateness)
def test_a_turn_arrives_its_think_time_after_the_turn_before(
    case: tuple[list[int], list[int], list[int], list[int]], late_ns: int
) -> None:
    session_id, starts, think, service = case
    arrived, finished = drive(Sessions(np.array(session_id), np.array(starts), np.array(think)), service, late_ns)
    time_of = {row: time for time, row in arrived}
    assert len(arrived) == len(time_of) == len(session_id)
    last_row: dict[int, int] = {}
    start_times = iter(starts)
    for row, session in enumerate(session_id):
        if session in last_row:
            assert time_of[row] == finished[last_row[session]] + think[row]
        else:
            assert time_of[row] == next(start_times)
        last_row[session] = row


def test_arrivals_that_are_due_together_come_by_time_and_row() -> None:
    arrivals = Sessions(np.array([0, 1, 0, 2]), np.array([5, 7, 7]), np.array([0, 0, 2, 0]))
    assert arrivals.pop_due(4) == []
    assert arrivals.pop_due(5) == [(5, 0)]
    arrivals.on_finish(0, 5)
    assert arrivals.next_ns == 7
    assert arrivals.pop_due(9) == [(7, 1), (7, 2), (7, 3)]
    assert arrivals.next_ns == NEVER


ALL_KINDS = [
    TraceArrival(time_scale=0.5),
    PoissonArrival(rate=2.0),
    GammaArrival(rate=2.0, burstiness=0.25),
    ConstantArrival(rate=2.0),
    AllAtOnceArrival(),
    ClosedLoopArrival(concurrency=3),
    SessionsArrival(rate=2.0, think_time=1.5),
]


@pytest.mark.parametrize("config", ALL_KINDS, ids=lambda config: config.kind)
def test_every_kind_starts_at_0_and_repeats_with_its_seed(config: ArrivalConfig) -> None:
    trace = make_trace(50, arrival_time=list(range(50)), session_id=[row % 7 for row in range(50)])

    def run(seed: int) -> list[Event]:
        return drive(make_arrivals(trace, config, np.random.default_rng(seed)), [SECOND] * 50)[0]

    first = run(seed=1)
    assert first[0] == (0, 0)
    assert sorted(row for _, row in first) == list(range(50))
    assert first == run(seed=1)
    drawn = config.kind in ("poisson", "gamma", "sessions")
    assert (first != run(seed=2)) == drawn


def times_of(config: ArrivalConfig, trace: Trace, seed: int = 0) -> np.ndarray:
    arrivals = make_arrivals(trace, config, np.random.default_rng(seed))
    return np.array([time for time, _ in arrivals.pop_due(NEVER - 1)])


def test_trace_times_are_multiplied_by_the_time_scale() -> None:
    trace = make_trace(3, arrival_time=[10.0, 10.0000001, 12.5])
    assert times_of(TraceArrival(), trace).tolist() == [0, 100, 2_500_000_000]
    assert times_of(TraceArrival(time_scale=2.0), trace).tolist() == [0, 200, 5_000_000_000]


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert times_of(ConstantArrival(rate=4.0), make_trace(3)).tolist() == [0, SECOND // 4, SECOND // 2]


@pytest.mark.parametrize("seed", few(range(5), 2))
@pytest.mark.parametrize(
    ("config", "cv"),
    [
        (PoissonArrival(rate=8.0), 1.0),
        (GammaArrival(rate=8.0, burstiness=1.0), 1.0),
        (GammaArrival(rate=8.0, burstiness=0.25), 2.0),
        (GammaArrival(rate=8.0, burstiness=4.0), 0.5),
    ],
)
def test_drawn_gaps_have_their_rate_and_variation(config: ArrivalConfig, cv: float, seed: int) -> None:
    n = 50_000
    gaps = np.diff(times_of(config, make_trace(n), seed)) / SECOND
    assert gaps.mean() * 8 == pytest.approx(1, abs=4.5 * cv / n**0.5)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_duration_of_gamma_arrivals_varies() -> None:
    """Rescaling to n/rate would make it a constant."""
    config = GammaArrival(rate=1.0, burstiness=0.5)
    ends = np.array([times_of(config, make_trace(200), seed)[-1] / SECOND for seed in range(200)])
    assert ends.std() == pytest.approx((199 / 0.5) ** 0.5, rel=0.25)


def test_think_time_is_exponential() -> None:
    n = 20_000
    trace = make_trace(n, session_id=[0] * n)
    arrivals = make_arrivals(trace, SessionsArrival(rate=1.0, think_time=3.0), np.random.default_rng(0))
    arrived, finished = drive(arrivals, [SECOND] * n)
    thinks = np.array([time - finished[row - 1] for time, row in arrived[1:]]) / SECOND
    assert thinks.mean() == pytest.approx(3, rel=0.04)
    assert thinks.std() == pytest.approx(3, rel=0.04)


def test_a_trace_without_times_names_the_alternatives() -> None:
    with pytest.raises(ConfigError, match="arrival=trace: .* no arrival times; choose poisson"):
        make_arrivals(make_trace(3), TraceArrival(), np.random.default_rng(0))


def test_a_trace_without_sessions_cannot_arrive_by_sessions() -> None:
    with pytest.raises(ConfigError, match="arrival=sessions: .* no sessions; .*trace.turns=multi"):
        make_arrivals(make_trace(3), SessionsArrival(rate=1.0), np.random.default_rng(0))


@pytest.mark.parametrize("config", [ConstantArrival(rate=1e-10), PoissonArrival(rate=1e-300)])
def test_times_beyond_the_clock_are_refused(config: ArrivalConfig) -> None:
    with pytest.raises(ConfigError, match="arrival.rate: makes arrival times longer than 146 years"):
        make_arrivals(make_trace(3), config, np.random.default_rng(0))


def test_turns_are_plain_requests_in_open_loop() -> None:
    trace = make_trace(4, session_id=[0, 0, 0, 1])
    arrivals = make_arrivals(trace, AllAtOnceArrival(), np.random.default_rng(0))
    assert arrivals.pop_due(0) == [(0, 0), (0, 1), (0, 2), (0, 3)]
