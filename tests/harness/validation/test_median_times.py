"""validation.step_times=median: a measured run as if each step had taken the median of its executions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.engines.resolving.system import resolve
from harness.errors import ConfigError, MeasuredRunError
from harness.measured import MeasuredRun, load_measured
from harness.measured.measured_run import TIMES, with_latencies
from harness.measured.own_run import at_median_times, with_retimed
from harness.validation.simulated_run import load_run, simulation_config
from harness.validation.step_errors import replay_steps
from tests.harness.builders import config
from tests.harness.measured.builders import STARVED, compare, pretend_measured, write_executions

SLOW = "device.step_overhead_s=0.02"  # of the measured run; the default is a small part of that
WORKLOADS = {
    "starved": STARVED,
    "prefixes": ["trace=shared_prefix", "trace.num_requests=40", "arrival.rate=60", "num_blocks=700"],
    "idle in between, some refused": ["trace.num_requests=20", "arrival.rate=0.4", "max_model_len=300"],
    "closed loop": ["trace.num_requests=30", "arrival=closed_loop", "arrival.concurrency=6"],
    "lookahead": ["trace.num_requests=40", "arrival.rate=20", "engine.max_lookahead_steps=6"],
}


def predicted_s(run: Path) -> np.ndarray:
    """The times that the cost model of the default device predicts for the steps of a run."""
    settings = config("task=validate", f"validation.measured=run:{run}")
    measured = load_run(settings.validation)
    system = resolve(simulation_config(settings, measured))
    replay = replay_steps(measured, system, system.cost_model(), "all")
    assert replay.first_difference is None
    return replay.steps["predicted"].to_numpy()


def with_first_step_late(run: MeasuredRun) -> MeasuredRun:
    """As in a real run, time passes between the first arrival and the first step."""
    assert run.own is not None
    late_s = 0.002
    steps = run.own.result.steps
    steps = steps.assign(start_time=steps["start_time"] + late_s)
    requests = run.requests.assign(**{name: run.requests[name] + late_s for name in TIMES if name != "arrival_time"})
    own = replace(run.own, result=replace(run.own.result, steps=steps))
    return replace(run, requests=with_latencies(requests, "arrival"), own=own)


@pytest.mark.parametrize("overrides", WORKLOADS.values(), ids=WORKLOADS)
def test_a_simulation_that_predicts_step_times_has_no_error_at_them(overrides: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    pretend_measured(run, *overrides, SLOW)
    predicted = predicted_s(run)
    more = write_executions(run, tmp_path / "more", predicted, predicted)
    settings = [f"validation.retimed=[{more}]", "plots=false"]
    as_it_was = compare(f"run:{run}", tmp_path / "as_it_was", *settings)
    assert max(abs(row["error_pct"] or 0.0) for row in as_it_was["errors"]) > 10
    found = compare(f"run:{run}", tmp_path / "out", *settings, "validation.step_times=median")
    assert max(abs(row["error_pct"]) for row in found["errors"]) < 1e-6
    assert all(level["mean_abs_difference"] < 1e-6 for level in found["levels"].values())
    noise = {(row["metric"], row["statistic"]): row["noise_floor_pct"] for row in found["errors"]}
    assert noise["tpot", "mean"] > 10, "one half holds the run as it was"
    assert found["steps"]["errors"]["all"]["mape_pct"] < 1e-6
    assert found["steps"]["errors"] == as_it_was["steps"]["errors"], "single steps are scored at medians either way"


def test_executions_as_long_as_the_run_change_nothing(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "run", *WORKLOADS["idle in between, some refused"])
    run = with_first_step_late(load_measured(f"run:{tmp_path / 'run'}"))
    assert run.own is not None
    durations = run.own.result.steps["duration"].to_numpy()
    executed = with_retimed(run, [write_executions(tmp_path / "run", tmp_path / "more", *[durations] * 3)])
    same, halves = at_median_times(executed)
    for each in (same, *halves):
        pd.testing.assert_frame_equal(each.requests, run.requests, rtol=0, atol=1e-9)
        pd.testing.assert_frame_equal(each.trace.table, run.trace.table, rtol=0, atol=1e-9)


def test_only_executed_steps_of_a_single_run_have_a_median(tmp_path: Path) -> None:
    pretend_measured(tmp_path / "run", "trace.num_requests=5")
    measured = f"run:{tmp_path / 'run'}"
    asked = "validation.step_times=median"
    with pytest.raises(MeasuredRunError, match=rf"{asked}: needs more executions .* \(validation.retimed\)"):
        compare(measured, tmp_path / "out", asked)
    for overrides in (["task=validate", f"validation.repeats=[{measured}]"], ["task=calibrate"]):
        with pytest.raises(ConfigError, match=f"{asked}: only task=validate reads it, and only of a single run"):
            config(*overrides, f"validation.measured={measured}", asked)
