"""`trace.num_requests=auto`: runs go on until the metric is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments import composed
from harness.config import IntervalConfig
from harness.errors import ConfigError
from harness.results.stored.files import read_results
from harness.studies.auto_length import decide, first_requests
from harness.terminal import run
from harness.workload.readers import load_trace
from harness.workload.trace import Trace, trace_table

TINY = ("model=qwen3-0.6b", "arrival.rate=20", "plots=false", "progress=false", "trace.num_requests=auto")


def summary_of(num_requests: int, low: float | None, high: float | None, verdict: str = "stable") -> dict[str, Any]:
    ends = {"p99_ttft_ms_low": low, "p99_ttft_ms_high": high}
    return {"num_prompts": num_requests, "verdict": verdict, "p99_ttft_ms": 100.0, **ends}


def test_a_run_is_long_enough_when_its_metric_is_known_or_it_is_overloaded() -> None:
    interval = IntervalConfig(width=0.1)
    assert decide(summary_of(1000, 91.0, 110.0), interval).is_enough
    assert not decide(summary_of(1000, 89.0, 111.0), interval).is_enough
    assert not decide(summary_of(1000, 95.0, None), interval).is_enough
    assert not decide(summary_of(1000, None, None, "overloaded"), interval).is_enough, "too short to be certain"
    assert decide(summary_of(2000, None, None, "overloaded"), interval).is_enough


def test_parts_double_and_each_is_the_start_of_the_next() -> None:
    trace = Trace("t", trace_table({"num_prompt_tokens": range(1, 5001), "num_output_tokens": [1] * 5000}), "made up")
    parts = [part.table for part in first_requests(trace)]
    assert [len(part) for part in parts] == [1000, 2000, 4000, 5000]
    for shorter, longer in zip(parts, parts[1:], strict=False):
        pd.testing.assert_frame_equal(shorter, longer.iloc[: len(shorter)])


@pytest.mark.parametrize(("width", "num_requests"), [(0.9, 1000), pytest.param(0.001, 2000, marks=pytest.mark.long)])
def test_a_run_goes_on_until_the_interval_is_narrow_or_the_limit_is_reached(
    width: float, num_requests: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interval = (
        "metrics.interval.metric=mean_e2el",
        f"metrics.interval.width={width}",
        "metrics.interval.max_requests=2000",
    )
    summary = run(composed(*TINY, *interval), tmp_path)
    assert summary["num_prompts"] == num_requests
    result, stored = read_results(tmp_path)
    assert len(result.requests) == stored["num_prompts"] == num_requests
    out = capsys.readouterr().out
    assert f"{num_requests:,} requests: mean_e2el is known to" in out
    assert ("going on" in out) is (num_requests == 2000)


def test_an_overloaded_run_ends_at_2000_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = run(composed(*TINY, "arrival.rate=400", "max_num_seqs=16"), tmp_path)
    assert summary["num_prompts"] == 2000 and summary["verdict"] == "overloaded"
    assert "overloaded, so p99_ttft grows with the run" in capsys.readouterr().out


def test_other_tasks_ask_for_a_number() -> None:
    with pytest.raises(ConfigError, match=r"trace\.num_requests=auto: only task=run"):
        load_trace(composed("trace.num_requests=auto").trace, seed=0)


def test_the_percentile_asked_for_is_reported(tmp_path: Path) -> None:
    overrides = ("metrics.interval.metric=p98_ttft", "metrics.percentiles=[50]", "metrics.interval.max_requests=1000")
    summary = run(composed(*TINY, *overrides), tmp_path)
    assert summary["p98_ttft_ms"] > summary["p50_ttft_ms"] and "p99_ttft_ms" not in summary


def test_a_metric_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"metrics\.interval\.metric"):
        composed("metrics.interval.metric=p99_itl")
