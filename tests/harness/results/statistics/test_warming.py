"""Prefix caches that still fill, told from those that are as full as they will be."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from harness.results.statistics.warming import Warming, warming_of


def requests_of(num_prefixes: int, num_requests: int, seed: int, suffix: int = 200) -> pd.DataFrame:
    """Prompts of a shared prefix of 800 tokens, cached for ever by the first that has it, and a suffix of their own."""
    rng = np.random.default_rng(seed)
    prefixes = rng.integers(0, num_prefixes, num_requests)
    is_known = np.ones(num_requests, dtype=bool)
    is_known[np.unique(prefixes, return_index=True)[1]] = False
    times = np.cumsum(rng.exponential(1.0, num_requests))
    return pd.DataFrame(
        {
            "arrival_time": times,
            "first_scheduled_time": times,
            "num_prompt_tokens": 800 + suffix,
            "num_cached_tokens": 800.0 * is_known,
        }
    )


@pytest.mark.parametrize(("num_requests", "is_over"), [(300, False), (600, False), (4000, True), (40_000, True)])
def test_caches_fill_until_each_of_150_prefixes_came(num_requests: int, is_over: bool) -> None:
    found = [warming_of(requests_of(150, num_requests, seed)) for seed in range(40)]
    assert sum(each.is_over == is_over for each in found) >= 36
    if not is_over:
        assert all(each.num_cold == num_requests // 4 for each in found if not each.is_over)


def test_the_tokens_to_compute_are_those_of_a_long_run() -> None:
    requests = requests_of(150, 2400, 0)
    found = warming_of(requests)
    in_long_runs = 200 / 1000
    whole = 1 - requests["num_cached_tokens"].sum() / requests["num_prompt_tokens"].sum()
    assert whole == pytest.approx(in_long_runs + 0.8 * 150 / 2400)
    assert found.is_over and found.factor * whole == pytest.approx(in_long_runs, rel=0.02)


def test_steady_hits_are_no_warming() -> None:
    rng = np.random.default_rng(1)
    steady = [requests_of(150, 600, seed) for seed in range(200)]
    for each in steady:
        each["num_cached_tokens"] = 800.0 * (rng.random(600) < 0.4)
    assert sum(not warming_of(each).is_over for each in steady) <= 4
    cooling = requests_of(150, 600, 0).assign(num_cached_tokens=lambda table: table["num_cached_tokens"][::-1].values)
    assert warming_of(cooling) == Warming()


def test_nothing_cached_unknown_or_served_is_no_warming() -> None:
    requests = requests_of(10, 50, 0)
    for table in (requests.assign(num_cached_tokens=0.0), requests.assign(num_cached_tokens=np.nan)):
        assert warming_of(table) == Warming()
    assert warming_of(requests.assign(first_scheduled_time=np.nan)) == warming_of(requests[:1]) == Warming()
    late = pd.concat([requests_of(150, 300, 0), requests.assign(first_scheduled_time=np.nan)])
    assert warming_of(late) == warming_of(requests_of(150, 300, 0))
