"""Intervals of means and percentiles: how often they hold the true value, and what they say of short runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from harness.config import MetricsConfig
from harness.results.metrics import summarize
from harness.results.statistics import intervals
from harness.results.tables import Floats
from tests.harness.results.builders import heavy_tailed_requests, run_toy_engine


def autocorrelated(rng: np.random.Generator, n: int, correlation: float) -> Floats:
    """Standard normal values, each correlated with the one before."""
    noise = rng.standard_normal(n) * math.sqrt(1 - correlation**2)
    noise[0] = rng.standard_normal()
    values = np.empty(n)
    values[0] = noise[0]
    for i in range(1, n):
        values[i] = correlation * values[i - 1] + noise[i]
    return values


@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.93), (0.9, 0.92), (0.98, 0.80)])
def test_intervals_hold_the_true_value_of_autocorrelated_latencies(correlation: float, least: float) -> None:
    """Lognormal latencies; their true mean and percentiles are known."""
    rng, hits = np.random.default_rng(0), []
    truth = [math.exp(0.5**2 / 2), *(math.exp(0.5 * norm.ppf(p)) for p in (0.5, 0.9, 0.99))]
    for _ in range(150):
        values = np.exp(0.5 * autocorrelated(rng, 2000, correlation))
        found = [intervals.of_mean(values), *intervals.of_percentiles(values, [50, 90, 99])]
        hits.append([not (low > true or high < true) for (low, high), true in zip(found, truth, strict=True)])
    shares = np.mean(hits, axis=0)
    assert (shares >= least).all(), shares


def test_intervals_are_narrow_where_values_are_independent() -> None:
    """Not much wider than Student's interval, or all would hold the true value."""
    values = np.random.default_rng(1).exponential(1.0, 4000)
    low, high = intervals.of_mean(values)
    assert 2 * 1.96 / math.sqrt(4000) < high - low < 4 * 1.96 / math.sqrt(4000) * 1.5


def test_equal_values_have_an_interval_of_no_width() -> None:
    values = np.full(100, 0.25)
    assert intervals.of_mean(values) == pytest.approx((0.25, 0.25))
    assert intervals.of_percentiles(values, [50, 90]) == [(0.25, 0.25), (0.25, 0.25)]


def test_what_a_short_run_cannot_know_is_not_told() -> None:
    values = np.arange(100.0)
    ((low, high),) = intervals.of_percentiles(values, [99])
    assert low <= 98 and math.isnan(high)
    assert np.isnan([intervals.of_mean(values[:20]), *intervals.of_percentiles(values[:20], [50])]).all()
    assert np.isnan(intervals.of_percentiles(values, [0, 100])).all()


def test_ramp_up_and_drain_are_left_out() -> None:
    arrival = np.arange(100.0)
    settled = intervals.settled(arrival, np.full(100, 5.0))
    assert arrival[settled].tolist() == list(range(10, 95))
    assert not intervals.settled(arrival, np.full(100, 20.0)).any(), "the run is too short beside a request"
    assert not intervals.settled(np.array([]), np.array([])).any()


def test_values_lie_within_their_intervals() -> None:
    summary = summarize(run_toy_engine(heavy_tailed_requests(1500, 2)), MetricsConfig())
    told = [key.removesuffix("_low") for key, value in summary.items() if key.endswith("_low") and value is not None]
    assert {"mean_ttft_ms", "p99_e2el_ms", "median_tpot_ms"} <= set(told)
    for key in told:
        assert 0 <= summary[f"{key}_low"] <= summary[key], key
        assert summary[f"{key}_high"] is None or summary[key] <= summary[f"{key}_high"], key
