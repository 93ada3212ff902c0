"""Runs of which no request counts: nothing is met, stable or passed, and what is written can be read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from harness import run
from harness.config import MetricsConfig, SloConfig
from harness.errors import ConfigError
from harness.figures.pages.text import page_text
from harness.results.metrics import summarize
from harness.results.stored.files import read_summary
from harness.results.summary import print_summary
from harness.studies.capacity.capacity import probe_config
from harness.studies.comparison.comparison import write_comparison
from tests.harness.builders import config
from tests.harness.results.builders import heavy_tailed_requests, run_toy_engine

SMALL = ("model=tiny", "device=laptop-cpu", "num_blocks=200", "cost=roofline", "plots=false", "max_model_len=1024")


@pytest.mark.parametrize("cut", ["metrics.warmup=1e9", "metrics.drain=500", "metrics={warmup: 3, drain: 3}"])
def test_a_window_without_requests_is_refused_before_the_run_where_arrivals_are_known(cut: str) -> None:
    with pytest.raises(ConfigError, match=r"no request counts: metrics.warmup=\S+ and metrics.drain=\S+ leave nothing"):
        run(*SMALL, "arrival=constant", "arrival.rate=10", "trace.num_requests=40", cut)


def test_nothing_that_is_empty_is_true() -> None:
    result = run_toy_engine(heavy_tailed_requests(40, 20))
    summary = summarize(result, MetricsConfig(drain=1e6, slo=SloConfig(ttft_ms=1e6)))
    assert summary["verdict"] == "unclear" and summary["slo_met"] is None and summary["slo_ttft_attainment"] is None
    assert summary["num_prompts"] == 0 and summary["num_excluded"] == 40
    assert summary["window_start_s"] is None and summary["window_end_s"] is None
    assert summary["notes"][0].startswith("no request counts: metrics.warmup=0 and metrics.drain=1e+06 leave nothing")


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(i, marks=pytest.mark.slow) for i in range(6, 12))])
@pytest.mark.sample(3)
def test_what_a_random_run_writes_can_be_read_shown_and_compared(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    overrides = [
        *SMALL,
        f"arrival={rng.choice(['closed_loop', 'sessions', 'all_at_once', 'poisson', 'gamma'])}",
        f"trace.num_requests={rng.choice([1, 2, 30])}",
        f"num_blocks={rng.choice([2, 30, 200])}",
        *(["metrics.slo.ttft_ms=1"] if rng.random() < 0.5 else []),
        f"metrics.warmup={rng.choice([0, 0, 1e-3, 0.3, 50])}",
        f"metrics.drain={rng.choice([0, 0, 1e-3, 0.3, 50])}",
        f"seed={seed}",
    ]
    if "arrival=sessions" in overrides:
        overrides.append("trace=shared_prefix")
    try:
        found = run(*overrides)
    except ConfigError as error:
        assert "no request counts" in str(error) or "sessions" in str(error)
        return
    found.save(tmp_path / "run")
    summary = read_summary(tmp_path / "run")
    print_summary(summary, Console(file=io.StringIO()))
    if not summary["completed"]:
        assert not summary["slo_met"] and summary["verdict"] != "stable"
    assert page_text(tmp_path / "run")
    write_comparison([tmp_path / "run"], tmp_path / "out", console=Console(file=io.StringIO()))


def test_probes_count_their_requests_whatever_a_run_would_leave_out() -> None:
    probe = probe_config(config("metrics.warmup=30", "metrics.drain=4", "metrics.slo.ttft_ms=7"), 3, 200)
    assert (probe.metrics.warmup, probe.metrics.drain, probe.metrics.slo.ttft_ms) == (0, 0, 7)
