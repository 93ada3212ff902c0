"""Service-level objectives in the summary, and on the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from harness.config import MetricsConfig, SloConfig
from harness.results.metrics import summarize
from harness.results.summary import print_summary
from harness.results.tables import RunResult
from tests.harness.results.builders import META, heavy_tailed_requests, run_toy_engine


@pytest.fixture(scope="module")
def result() -> RunResult:
    meta = {
        **META,
        "config": {"max_num_seqs": 128, "arrival": {"kind": "poisson", "rate": 2.0}},
        "cost_model": "x" * 99,
    }
    return replace(run_toy_engine(heavy_tailed_requests(300, 2)), meta=meta)


def summary_with(result: RunResult, **slo: Any) -> dict[str, Any]:
    return summarize(result, MetricsConfig(percentiles=(50.0, 90.0, 99.0), slo=SloConfig(**slo)))


def printed(summary: dict[str, Any]) -> str:
    stream = io.StringIO()
    print_summary(summary, Console(file=stream, width=80))
    return stream.getvalue()


@pytest.mark.parametrize("percentile", [50.0, 90.0, 97.0, 99.0])
@pytest.mark.parametrize("name", ["ttft", "tpot", "e2el"])
def test_an_slo_is_met_up_to_the_percentile_that_was_reached(result: RunResult, name: str, percentile: float) -> None:
    values = result.requests[name].dropna().to_numpy() * 1e3
    reached = float(np.percentile(values, percentile))
    for factor, met in ((1.001, True), (0.999, False)):
        summary = summary_with(result, percentile=percentile, **{f"{name}_ms": reached * factor})
        assert summary["slo_met"] is met
        assert summary[f"p{percentile:g}_{name}_ms"] == pytest.approx(reached), "also one that nobody asked for"
        undefined = len(result.requests) - len(values)  # TPOT of requests with one token, which meets every limit
        within = ((values <= reached * factor).sum() + undefined) / len(result.requests)
        assert summary[f"slo_{name}_attainment"] == pytest.approx(within)
        assert summary[f"slo_{name}_ms"] == pytest.approx(reached * factor)
        assert summary["slo_percentile"] == percentile


def test_without_limits_nothing_is_met_or_broken(result: RunResult) -> None:
    summary = summary_with(result)
    assert summary["slo_met"] is None and summary["goodput_share"] is None
    assert "SLO" not in printed(summary)


def test_one_broken_limit_breaks_the_slo(result: RunResult) -> None:
    summary = summary_with(result, ttft_ms=1e6, tpot_ms=1e-3)
    assert summary["slo_met"] is False
    text = printed(summary)
    assert "SLO TTFT" in text and "pass" in text and "FAIL" in text and "SLO not met" in text


def test_the_terminal_says_verdict_rates_and_cost_model_in_80_columns(result: RunResult) -> None:
    text = printed(summary_with(result, ttft_ms=123.0))
    lines = text.splitlines()
    assert any(line.startswith("STABLE") and "of capacity" in line for line in lines)
    assert "requests/s offered" in text and "of drain" in text and "Cost model" in text
    assert max(map(len, lines)) <= 80
    latency = next(line for line in lines if line.startswith("TTFT"))
    assert latency.count("±") >= 2, "intervals beside the values"


def test_the_terminal_says_where_the_run_is_too_short(result: RunResult) -> None:
    summary = summary_with(result) | {"p99_ttft_ms_low": 1.0, "p99_ttft_ms_high": None}
    text = printed(summary)
    latency = next(line for line in text.splitlines() if line.startswith("TTFT"))
    assert latency.rstrip().endswith("±?") and "±?: the run is too short to say" in " ".join(text.split())


def test_a_summary_of_an_earlier_version_is_still_printed(result: RunResult) -> None:
    summary = summary_with(result)
    added = ("verdict", "offered", "served_rate", "queue_growth", "arrival_window", "ramp_up", "drain_s", "cost_model")
    old = {
        key: value
        for key, value in summary.items()
        if not key.startswith(added) and not key.endswith(("_low", "_high"))
    }
    assert "±" not in printed(old) and "Load" not in printed(old)
