"""The verdict on a run and the load that it was under."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import MetricsConfig, SloConfig
from harness.results.load import load_of
from harness.results.measures import demand
from harness.results.measures.verdict import judge
from harness.results.metrics import summarize
from harness.results.tables import RunResult
from tests.harness.results.builders import META, ToyRequest, heavy_tailed_requests, run_toy_engine


def arriving(rate: float, num_requests: int = 600, **options: Any) -> RunResult:
    """A run of the toy engine, which has two seats and so a capacity of about 3 requests/s."""
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(1 / rate, num_requests))
    requests = [ToyRequest(arrival=time, prompt=100, output=20) for time in times.tolist()]
    meta = {**META, "config": {"max_num_seqs": 2, "arrival": {"kind": "poisson", "rate": rate}}}
    return replace(run_toy_engine(requests, num_blocks=500, max_num_seqs=2, **options), meta=meta)


@pytest.fixture(scope="module")
def capacity() -> float:
    """Requests/s that the toy engine finishes with requests always waiting."""
    result = arriving(1e6)
    return 600 / float(result.requests["finish_time"].max())


@pytest.mark.parametrize(
    ("load", "verdict"), [(0.3, "stable"), (0.8, "stable"), (1.1, "overloaded"), (3, "overloaded")]
)
def test_verdict_on_the_toy_engine(capacity: float, load: float, verdict: str) -> None:
    result = arriving(load * capacity)
    judgement = judge(result, result.requests)
    assert judgement.verdict == verdict
    assert judgement.offered_load == pytest.approx(load, rel=0.05)


def test_an_overloaded_run_says_so_in_its_notes_and_meets_no_slo(capacity: float) -> None:
    generous = MetricsConfig(slo=SloConfig(ttft_ms=1e9))
    summary = summarize(arriving(1.5 * capacity), generous)
    assert summary["verdict"] == "overloaded" and summary["slo_met"] is False
    assert any("the queue grew to" in note for note in summary["notes"])
    calm = summarize(arriving(0.5 * capacity), generous)
    assert calm["verdict"] == "stable" and calm["slo_met"] is True
    assert not any("overloaded" in note for note in calm["notes"])


@pytest.mark.parametrize("kind", ["closed_loop", "sessions", "all_at_once"])
def test_arrivals_that_offer_no_rate_are_closed(kind: str) -> None:
    result = arriving(5.0, 50)
    result.meta["arrival"] = kind
    summary = summarize(result, MetricsConfig())
    assert summary["verdict"] == "closed" and summary["offered_load"] is None


def test_a_run_that_ended_early_is_unclear(capacity: float) -> None:
    summary = summarize(arriving(0.5 * capacity, until_s=20.0), MetricsConfig())
    assert summary["verdict"] == "unclear" and summary["offered_load"] is None and summary["slo_met"] is None


def test_a_queue_that_grows_all_the_time_overrules_the_estimate(
    capacity: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.results.measures.verdict.offered_load", lambda *_: 0.7)
    for load, verdict in ((1.5, "overloaded"), (0.7, "stable")):
        result = arriving(load * capacity)
        assert judge(result, result.requests).verdict == verdict


def test_a_long_run_without_growth_overrules_the_estimate(capacity: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.results.measures.verdict.offered_load", lambda *_: 1.5)
    result = arriving(0.5 * capacity, 2000)
    assert judge(result, result.requests).verdict == "stable"
    result = arriving(1.5 * capacity, 2000)
    assert judge(result, result.requests).verdict == "overloaded"


@pytest.mark.parametrize(
    ("rate", "num_requests", "verdict"), [(40, 300, "unclear"), (40, 2400, "stable"), (150, 300, "overloaded")]
)
def test_a_short_run_with_cold_caches_is_not_overloaded_by_these(rate: float, num_requests: int, verdict: str) -> None:
    """Requests of 150 prefixes: with all of them cached, 40 requests/s are 0.6 of capacity, at first 1.8."""
    rng = np.random.default_rng(3)
    times, known = np.cumsum(rng.exponential(1 / rate, num_requests)), set[int]()
    requests = []
    for time in times.tolist():
        prefix = int(rng.integers(150))
        requests.append(ToyRequest(time, 4000, 20, cached=3400 * (prefix in known)))
        known.add(prefix)
    meta = {**META, "config": {"max_num_seqs": 64, "arrival": {"kind": "poisson", "rate": rate}}}
    result = replace(run_toy_engine(requests, 20_000, 64), meta=meta)
    assert judge(result, result.requests).verdict == verdict


def test_one_request_and_none_have_no_load() -> None:
    for num_requests in (0, 1):
        result = run_toy_engine(heavy_tailed_requests(num_requests, 1) if num_requests else [])
        summary = summarize(result, MetricsConfig())
        assert summary["verdict"] == "unclear" and summary["offered_rate"] is None


def test_a_handful_of_requests_is_not_overloaded() -> None:
    requests = [ToyRequest(i * 0.0025, 2000, 200) for i in range(4)]
    result = replace(run_toy_engine(requests), meta={**META, "config": {"max_num_seqs": 4}})
    assert judge(result, result.requests).verdict == "unclear"


@given(st.lists(st.sampled_from([0.0, 1e-6, 2e-5, 0.003]), min_size=4, max_size=4), st.integers(0, 99))
def test_fit_finds_the_times_that_steps_were_made_of(times: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = np.stack([np.ones(60), *(rng.integers(0, high, 60) for high in (2000, 64, 50_000))], axis=1).astype(float)
    found = demand._fit(counts, counts @ np.array(times))
    assert counts @ found == pytest.approx(counts @ np.array(times), rel=1e-4, abs=1e-9)
    assert (found >= 0).all()


def test_rates_and_growth_equal_a_walk_over_time() -> None:
    """The number waiting is looked at 20,000 times; a line is fitted to it by numpy."""
    result = run_toy_engine(heavy_tailed_requests(150, 4), num_blocks=200, max_num_seqs=4)
    load = load_of(result, result.requests)
    arrival, finish = (result.requests[f"{name}_time"].to_numpy() for name in ("arrival", "finish"))
    start, end = arrival.min(), arrival.max()
    steps: pd.DataFrame = result.steps
    begins = steps["start_time"].to_numpy()
    times = np.linspace(start, end, 20_001)
    step = np.searchsorted(begins, times, side="right") - 1
    during = (step >= 0) & (times <= (begins + steps["duration"].to_numpy())[step])
    waiting = np.where(during, steps["num_waiting"].to_numpy()[step], 0)
    running = np.where(during, steps["num_running"].to_numpy()[step], 0)
    assert load.queue_growth == pytest.approx(np.polyfit(times, waiting, 1)[0], rel=0.01, abs=0.01)
    assert load.offered_rate == pytest.approx(149 / (end - start))
    assert load.served_rate == pytest.approx((finish <= end).sum() / (end - start))
    assert load.drain_s == pytest.approx(np.nanmax(finish) - end)
    first = times[np.argmax(running >= np.median(running))] - start
    assert load.ramp_up_s == pytest.approx(first, abs=2 * (times[1] - times[0]))
    assert not math.isnan(load.window_output_throughput)


def test_output_tokens_of_the_arrival_window_are_those_of_the_toy_engine() -> None:
    requests = heavy_tailed_requests(80, 4)
    result = run_toy_engine(requests)
    load = load_of(result, result.requests)
    start, end = min(each.arrival for each in requests), max(each.arrival for each in requests)
    tokens = sum(start < time <= end for each in requests for time in each.tokens)
    assert load.window_output_throughput * load.arrival_window_s == pytest.approx(tokens, abs=20)


_FIT = """
import numpy as np
from harness.results.measures.demand import _fit
counts = np.random.default_rng(0).random((200_001, 4)) * [1, 2000, 200, 1e5]
durations = counts @ [1e-2, 1e-5, 1e-5, 1e-8] + np.random.default_rng(1).random(len(counts)) * 1e-3
print(_fit(counts, durations).tolist())
"""


@pytest.mark.long
def test_the_load_does_not_depend_on_the_number_of_threads() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _FIT],
            env={**os.environ, "OPENBLAS_NUM_THREADS": count},
            capture_output=True,
            check=True,
        ).stdout
        for count in ("1", "2")
    }
    assert len(found) == 1
