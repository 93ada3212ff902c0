"""Metrics of runs that are small enough to work out by hand, and at the edges: nothing arrived, nothing finished."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from harness.config import MetricsConfig, SloConfig
from harness.results.metrics import HEADLINE, json_ready, summarize
from tests.harness.results.builders import ToyRequest, heavy_tailed_requests, run_toy_engine, tables

PERCENTILES = (1.0, 50.0, 90.0, 99.0, 99.9)
CONFIG = MetricsConfig(percentiles=PERCENTILES)


def test_two_requests_by_hand() -> None:
    """a: arrives 1, tokens at 2, 3, 5. b: arrives 4, one token at 6. Idle in between counts as zero use."""
    requests = [
        ToyRequest(1.0, 10, 3, cached=5, status="finished", first_scheduled=1.5, tokens=[2.0, 3.0, 5.0]),
        ToyRequest(4.0, 30, 2, status="finished", first_scheduled=5.0, tokens=[6.0]),
    ]
    steps: list[tuple[float, ...]] = [
        (0, 1.5, 0.5, 1, 0, 5, 0, 1, 0, 10, 10, 0, 10, 5),
        (1, 2.0, 1.0, 0, 1, 0, 11, 1, 0, 20, 5, 0, 0, 0),
        (2, 5.0, 1.0, 1, 0, 30, 0, 1, 1, 40, 0, 0, 30, 0),
    ]
    summary = summarize(tables(requests, steps, num_blocks=100, complete=True), CONFIG)
    expected = {
        "duration": 5.0,
        "output_throughput": 4 / 5,
        "request_throughput": 2 / 5,
        "truncated": 1,
        "mean_ttft_ms": 1500.0,
        "mean_tpot_ms": 1500.0,
        "median_itl_ms": 1500.0,
        "mean_e2el_ms": 3000.0,
        "mean_queue_time_ms": 750.0,
        "prefix_cache_hit_rate": 5 / 40,
        "mean_kv_cache_usage": (0.10 * 0.5 + 0.20 * 1 + 0.40 * 1) / 5,
        "max_kv_cache_usage": 0.4,
        "mean_kv_tokens": 0.75 * (10 * 0.5 + 20 * 1 + 40 * 1) / 100 / 5,
        "mean_kv_reserved": 0.2 * (10 * 0.5 + 20 * 1 + 40 * 1) / 100 / 5,
        "mean_kv_internal": 0.05 * (10 * 0.5 + 20 * 1 + 40 * 1) / 100 / 5,
        "mean_kv_external": 7 * 1 / 1600 / 5,
        "kv_waste": (0.25 * 65 * 16 + 7) / (65 * 16 + 7),
        "mean_saved_blocks": (10 * 0.5 + 5 * 1) / 5,
        "saved_block_share": 10 / (10 + 5 + 20 + 40),
        "mean_running": 2.5 / 5,
        "mean_waiting": (0.5 + 1) / 5,
        "num_steps": 3,
        "mean_batch_tokens": 36 / 3,
        "mean_decode_batch_size": 1.0,
        "drafted_tokens": 0,
        "mean_tokens_per_decode": 1.0,
        "window_start_s": 1.0,
        "window_end_s": 4.0,
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected)
    assert summary["request_goodput"] is None, "no SLO was given"
    assert summary["draft_acceptance_rate"] is None, "nothing was drafted"


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({"ttft_ms": 1000.0}, 2),
        ({"ttft_ms": 999.0}, 1),
        ({"tpot_ms": 250.0}, 2),
        ({"tpot_ms": 249.0}, 1),
        ({"ttft_ms": 1000.0, "e2el_ms": 999.0}, 1),
    ],
)
def test_goodput_counts_requests_within_every_limit_given(limits: dict[str, float], good: int) -> None:
    """One request of three tokens, one of a single token, which has no TPOT to miss, and one that was refused."""
    requests = [
        ToyRequest(0.0, 10, 3, status="finished", first_scheduled=0.0, tokens=[1.0, 1.25, 1.5]),
        ToyRequest(1.0, 10, 1, status="finished", first_scheduled=1.0, tokens=[1.5]),
        ToyRequest(1.0, 10, 1, status="rejected"),
    ]
    result = tables(requests, [], num_blocks=100, complete=True)
    summary = summarize(result, MetricsConfig(slo=SloConfig(**limits)))
    assert summary["goodput_share"] == pytest.approx(good / 3)
    assert summary["request_goodput"] == pytest.approx(good / 1.5)


@pytest.mark.parametrize("case", ["empty", "rejected", "one token", "never arrived"])
def test_edges_give_a_summary_that_json_can_hold(case: str) -> None:
    requests = {
        "empty": [],
        "rejected": [ToyRequest(0.0, 10**9, 5), ToyRequest(1.0, 10**9, 5)],
        "one token": [ToyRequest(0.5, 10, 1)],
        "never arrived": [ToyRequest(math.nan, 10, 1)],
    }[case]
    result = tables(requests, [], 100, complete=False) if case == "never arrived" else run_toy_engine(requests)
    summary = summarize(result, CONFIG)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert set(HEADLINE) <= summary.keys()
    assert summary["num_prompts"] == len(requests)
    assert summary["mean_tpot_ms"] is None
    assert summary["num_excluded"] == 0
    if case == "one token":
        assert summary["completed"] == 1
        assert summary["mean_ttft_ms"] == summary["p99_e2el_ms"] > 0
        assert summary["output_throughput"] > 0
    else:
        assert summary["duration"] is None
        assert summary["failed"] == len(requests)
        assert summary["rejected"] == (2 if case == "rejected" else 0)


def test_a_cut_window_is_stated_and_an_uncut_one_adds_no_note() -> None:
    result = run_toy_engine(heavy_tailed_requests(50, rate=5))
    whole = summarize(result, CONFIG)
    cut = summarize(result, MetricsConfig(warmup=2.0, drain=1.0))
    arrivals = result.requests["arrival_time"]
    assert whole["num_excluded"] == 0 and whole["notes"] == list(result.meta["notes"])
    assert cut["num_excluded"] == 50 - cut["num_prompts"] > 0
    assert (cut["window_start_s"], cut["window_end_s"]) == (arrivals.min() + 2.0, arrivals.max() - 1.0)
    assert "ITL covers the whole run" in cut["notes"][-1]


def test_replay_lag_is_reported_only_where_there_is_some() -> None:
    result = run_toy_engine(heavy_tailed_requests(4, rate=5))
    assert not [name for name in summarize(result, CONFIG) if "replay_lag" in name]
    result.requests["replay_lag"] = [0.0, 0.001, 0.003, math.nan]
    summary = summarize(result, CONFIG)
    assert summary["mean_replay_lag_ms"] == pytest.approx(4 / 3)
    assert summary["max_replay_lag_ms"] == pytest.approx(3)
    assert summary["p99_replay_lag_ms"] == pytest.approx(np.percentile([0, 1, 3], 99))


def test_percentile_names_are_those_of_vllm() -> None:
    summary = summarize(run_toy_engine(heavy_tailed_requests(4, rate=5)), CONFIG)
    assert {"p1_ttft_ms", "p50_tpot_ms", "p99_itl_ms", "p99.9_e2el_ms", "std_ttft_ms"} <= summary.keys()


def test_json_ready_converts_numpy_and_refuses_what_it_does_not_know() -> None:
    value = {"a": np.float64("inf"), 2: (np.int64(3), np.bool_(True), np.array([math.nan, 1.0]))}
    assert json_ready(value) == {"a": None, "2": [3, True, [None, 1.0]]}
    with pytest.raises(TypeError, match="object"):
        json_ready({"a": object()})
