"""Latencies are sums of steps, so they are simulated at means; single steps are scored and fitted against medians."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from harness.studies.machine_profiling import PROFILES
from simulator.profile.profile_folder import load_profile, save_profile
from tests.harness.measured.builders import calibrate, compare, pretend_measured

TINY = ["device=laptop-cpu", "cost=profiled"]
FACTOR = 1.3


@pytest.fixture
def measured(tmp_path: Path) -> list[str]:
    """A run at the medians of a profile; returns the cost model of the profile whose means are longer by `FACTOR`."""
    profile = load_profile(PROFILES / "amd-epyc" / "tiny" / "tp1")
    for name, factor in (("medians", 1.0), ("means", FACTOR)):
        save_profile(replace(profile, meta=replace(profile.meta, mean_over_median=factor)), tmp_path / name)
    pretend_measured(
        tmp_path / "a", *TINY, f"cost.profile={tmp_path / 'medians'}", "model=tiny", "max_num_batched_tokens=1024",
        "trace.num_requests=8", "arrival.rate=0.02",  # one at a time
    )  # fmt: skip
    return [*TINY, f"cost.profile={tmp_path / 'means'}"]


@pytest.mark.long
def test_steps_are_scored_at_medians_and_latencies_at_means(measured: list[str], tmp_path: Path) -> None:
    found = compare(f"run:{tmp_path / 'a'}", tmp_path / "b", *measured)
    assert found["steps"]["errors"]["all"]["mape_pct"] < 0.01
    errors = {(row["metric"], row["statistic"]): row["error_pct"] for row in found["errors"]}
    assert errors["tpot", "mean"] == pytest.approx(100 * (FACTOR - 1), abs=1)
    found = compare(f"run:{tmp_path / 'a'}", tmp_path / "c", *measured, "cost.statistic=median")
    assert max(abs(row["error_pct"]) for row in found["errors"]) < 0.01


@pytest.mark.long
def test_constants_are_fitted_to_medians_of_steps_and_to_means_of_latencies(
    measured: list[str], tmp_path: Path
) -> None:
    one = ["calibration.constants=[step_overhead_us]", "calibration.max_evaluations=8"]
    of_steps = calibrate(tmp_path / "s", f"run:{tmp_path / 'a'}", *measured, *one)
    assert of_steps.constants["step_overhead_us"] == pytest.approx(0, abs=1)
    document = yaml.safe_load((tmp_path / "s" / "calibration.yaml").read_text())
    assert document["objective"]["before"] < 1e-4
    calibrate(tmp_path / "l", f"run:{tmp_path / 'a'}", *measured, *one, "calibration.objective=statistics")
    document = yaml.safe_load((tmp_path / "l" / "calibration.yaml").read_text())
    assert document["objective"]["before"] > 0.2  # no overhead below 0 makes up for steps that are too long
