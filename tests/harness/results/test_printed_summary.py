"""The terminal summary: what it says about whole, interrupted and failed runs."""

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
from tests.harness.results.builders import ToyRequest, heavy_tailed_requests, run_toy_engine


def printed(summary: dict[str, Any], width: int = 80) -> str:
    stream = io.StringIO()
    print_summary(summary, Console(file=stream, width=width))
    return stream.getvalue()


def toy_summary(config: MetricsConfig | None = None, until_s: float = np.inf, **changes: Any) -> dict[str, Any]:
    result = run_toy_engine(heavy_tailed_requests(200, 30, hit_share=0.3), num_blocks=500, until_s=until_s)
    return {**summarize(result, config or MetricsConfig()), **changes}


@pytest.mark.parametrize("width", [80, 120])
def test_summary_shows_the_headline_numbers_and_fits(width: int) -> None:
    summary = toy_summary()
    text = printed(summary, width)
    assert "SIMULATED  qwen3-8b" in text
    assert f"{summary['output_throughput']:,.0f} output tok/s" in text
    assert "200 of 200 finished" in text
    assert f"{summary['preemptions']} · {summary['preempted_requests']} requests hit" in text
    assert f"{summary['prefix_cache_hit_rate']:.1%}" in text
    assert f"{summary['mean_kv_cache_usage']:.1%} mean" in text
    for name in ("TTFT", "TPOT", "ITL", "E2EL"):
        row = next(line for line in text.splitlines() if line.startswith(name))
        assert len(row.split()) == 5, "mean, p50, p90 and p99 are there"
    assert "! lengths sampled from fitted distributions" in text
    assert max(map(len, text.splitlines())) <= width
    assert "INCOMPLETE" not in text and "rejected" not in text and "Goodput" not in text


def test_summary_columns_hold_what_their_heads_say() -> None:
    summary = toy_summary(mean_ttft_ms=111.0, median_ttft_ms=222.0, p90_ttft_ms=333.0, p99_ttft_ms=444.0)
    lines = printed(summary).splitlines()
    head = next(line for line in lines if "mean" in line and "p99" in line).split()
    row = next(line for line in lines if line.startswith("TTFT")).split()
    assert dict(zip(head[-4:], row[-4:], strict=True)) == {"mean": "111", "p50": "222", "p90": "333", "p99": "444"}


def test_summary_says_measured_and_what_to_beware_of() -> None:
    config = MetricsConfig(percentiles=(50.0, 95.0), warmup=1.0, slo=SloConfig(ttft_ms=100.0, percentile=95.0))
    bad = {"no output tokens": 1234}
    summary = toy_summary(config, until_s=4.0, simulated=False, engine="gpu", truncated=7, bad_rows=bad)
    summary |= {"rejected": 3, "max_replay_lag_ms": 12.0}
    text = " ".join(printed(summary).split())
    assert text.startswith("MEASURED") and "SIMULATED" not in text
    assert f"INCOMPLETE: interrupted, {summary['unfinished']} of {summary['num_prompts']} requests unfinished" in text
    assert "3 rejected" in text and f"{summary['unfinished']} unfinished" in text
    assert "1,234 rows of the trace were skipped: no output tokens" in text
    assert "7 cut short" in text
    assert f"{summary['num_excluded']} requests are left out" in text
    assert "late by up to 12.0 ms" in text
    assert "ITL covers the whole run" in text
    assert f"{summary['goodput_share']:.1%} of requests" in text
    assert " p99 " not in text, "a percentile nobody asked for has no column"


@pytest.mark.parametrize("requests", [[], [ToyRequest(0.0, 10**9, 1)], [ToyRequest(0.0, 5, 1)]])
def test_summary_of_nearly_nothing_is_printed(requests: list[ToyRequest]) -> None:
    summary = summarize(run_toy_engine([replace(request, tokens=[]) for request in requests]), MetricsConfig())
    text = printed(summary)
    assert f"{summary['completed']} of {len(requests)} finished" in text
    assert "nan" not in text and "None" not in text and "–" in text
