"""task=retime: the steps of a real run are executed again as they were planned, and scored by their median."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")

from harness.engines.real_replay import replay_paced  # noqa: E402
from harness.errors import ConfigError, MeasuredRunError  # noqa: E402
from harness.results.stored.files import read_results  # noqa: E402
from tests.harness.builders import SMALLEST, config, execute_in  # noqa: E402
from tests.harness.measured.builders import (  # noqa: E402
    SECRET,
    assert_no_secret,
    change_summary,
    made_up,
    refer_to_secret,
    write_distserve,
)

PREFIXES = [
    "trace=shared_prefix", "trace.num_prefixes=2", "trace.prefix_tokens=64", "trace.suffix.low=4",
    "trace.suffix.high=40", "trace/lengths@trace.output=uniform", "trace.output.low=1", "trace.output.high=40",
]  # fmt: skip
ENGINE = [*SMALLEST, "max_num_batched_tokens=64", "max_num_seqs=8", "engine.warm_up=false", "num_blocks=400"]
STARVED = ["arrival=all_at_once", "num_blocks=20", "trace.num_requests=10", "engine.warm_up=true"]


def measure(folder: Path, *overrides: str) -> Path:
    execute_in(folder, config("progress=false", *ENGINE, *PREFIXES, "plots=false", *overrides))
    return folder


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of three requests; tests that change it copy it first."""
    return measure(tmp_path_factory.mktemp("short") / "run", "arrival=all_at_once", "trace.num_requests=3")


def test_references_in_the_configuration_of_a_run_stay_text(
    short_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    shutil.copytree(short_run, tmp_path / "run")
    refer_to_secret(tmp_path / "run")
    retime(tmp_path / "run", tmp_path / "out", 1)
    assert_no_secret(tmp_path / "out", "")


def retime(run: Path, out: Path, repeats: int) -> pd.DataFrame:
    settings = ["task=retime", f"validation.measured=run:{run}", f"retiming.repeats={repeats}"]
    execute_in(out, config("progress=false", *settings))
    table = pd.read_parquet(out / "step_times.parquet")
    return table.pivot(index="repeat", columns="step", values="duration")


def validate(run: Path, out: Path, *retimed: Path) -> dict[str, Any]:
    folders = ",".join(map(str, retimed))
    settings = ["task=validate", f"validation.measured=run:{run}", f"validation.retimed=[{folders}]", "plots=false"]
    execute_in(out, config("progress=false", "device=laptop-cpu", *settings))
    document: dict[str, Any] = json.loads((out / "validation.json").read_text())
    return document


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(["engine.max_lookahead_steps=1", *STARVED], marks=pytest.mark.slow),
        ["engine.max_lookahead_steps=6", *STARVED],
        pytest.param(
            ["engine.max_lookahead_steps=6", "arrival.rate=3", "trace.num_requests=5", "max_model_len=90"],
            marks=pytest.mark.slow,
        ),
        ["engine.max_lookahead_steps=4", "arrival=closed_loop", "arrival.concurrency=2", "trace.num_requests=3"],
    ],
    ids=["starved", "starved, looking ahead", "idle in between, some refused", "closed loop"],
)
def test_steps_are_executed_as_planned_and_scored_by_their_median(overrides: list[str], tmp_path: Path) -> None:
    run = measure(tmp_path / "run", *overrides)
    result = read_results(run)[0]
    assert (result.requests["num_preemptions"].sum() > 0) == ("num_blocks=20" in overrides)
    ends = result.steps["start_time"] + result.steps["duration"]
    is_idle = (result.steps["start_time"].iloc[1:].to_numpy() > ends.iloc[:-1].to_numpy() + 1e-3).any()
    is_refused = (result.requests["status"] == "rejected").any()
    assert (is_idle, is_refused) == (("arrival.rate=3" in overrides),) * 2
    times = [retime(run, tmp_path / f"more{i}", repeats).to_numpy() for i, repeats in enumerate((2, 1))]
    assert [len(each) for each in times] == [2, 1] and all((each > 0).all() for each in times)
    executions = np.vstack([result.steps["duration"].to_numpy(), *times])  # refused unless all are as many steps
    found = validate(run, tmp_path / "out", tmp_path / "more0", tmp_path / "more1")["steps"]
    assert found["num_executions"] == 4 and found["plans_identical"]
    median = np.median(executions, axis=0)
    scored = found["errors"]["all"]
    assert scored["count"] == len(median)
    assert scored["single_mape_pct"] == pytest.approx(100 * np.abs(executions / median - 1).mean())
    once = validate(run, tmp_path / "out")["steps"]
    assert once["num_executions"] == 1 and "single_mape_pct" not in once["errors"]["all"]
    ratio = (1 + scored["total_error_pct"] / 100) / (1 + once["errors"]["all"]["total_error_pct"] / 100)
    assert ratio == pytest.approx(executions[0].sum() / median.sum())


def test_a_run_that_is_planned_otherwise_now_is_refused(short_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(short_run, tmp_path / "run")
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("max_num_batched_tokens: 64", "max_num_batched_tokens: 48"))
    with pytest.raises(MeasuredRunError, match=r"step \d+ of \d+ is planned otherwise"):
        retime(run, tmp_path / "more", 1)
    assert not (tmp_path / "more" / "retimed.json").exists()


def test_turns_of_sessions_are_executed_again(tmp_path: Path) -> None:
    trace = [
        "trace=sharegpt_multiturn",
        "trace.num_requests=3",
        "arrival=sessions",
        "arrival.rate=20",
        "arrival.think_time=0.1",
    ]
    execute_in(tmp_path / "run", config("progress=false", "plots=false", *ENGINE, *trace, "max_model_len=256"))
    assert retime(tmp_path / "run", tmp_path / "more", 1).to_numpy().min() > 0


def test_a_run_of_another_device_is_refused(short_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(short_run, tmp_path / "run")
    change_summary(run, device="another CPU, 1 thread")
    with pytest.raises(MeasuredRunError, match="measured on another CPU, 1 thread, this is "):
        retime(run, tmp_path / "more", 1)


def test_results_do_not_replace_what_they_are_made_of(short_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(short_run, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(ConfigError, match="task=retime reads this folder"):
        retime(run, run, 1)
    retime(run, tmp_path / "more", 1)
    with pytest.raises(ConfigError, match="task=validate reads this folder"):
        validate(run, tmp_path / "more", tmp_path / "more")
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    with pytest.raises(MeasuredRunError, match="names a folder twice"):
        validate(run, tmp_path / "out", tmp_path / "more", tmp_path / "more")


def test_an_interrupt_keeps_the_repeats_that_are_whole(
    short_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter((replay_paced, interrupt))
    monkeypatch.setattr("harness.engines.real.replay_paced", lambda *arguments: next(calls)(*arguments))
    with pytest.raises(KeyboardInterrupt):
        retime(short_run, tmp_path / "more", 5)
    assert validate(short_run, tmp_path / "out", tmp_path / "more")["steps"]["num_executions"] == 2


def interrupt(*arguments: object) -> list[int]:
    raise KeyboardInterrupt


def test_step_times_belong_to_one_run(short_run: Path, tmp_path: Path) -> None:
    runs = [shutil.copytree(short_run, tmp_path / "run0"), tmp_path / "run1"]
    measure(runs[1], "arrival=all_at_once", "trace.num_requests=2")
    retime(runs[0], tmp_path / "more", 1)
    with pytest.raises(MeasuredRunError, match="step times of .*run0, not of .*run1"):
        validate(runs[1], tmp_path / "out", tmp_path / "more")
    with pytest.raises(MeasuredRunError, match=r"retimed\.json"):
        validate(runs[0], tmp_path / "out", runs[1])


def test_only_real_runs_of_our_own_engine_are_executed_again(tmp_path: Path) -> None:
    execute_in(tmp_path / "simulated", config("progress=false", "plots=false", "trace.num_requests=5"))
    with pytest.raises(MeasuredRunError, match="a simulation, not a measured run"):
        retime(tmp_path / "simulated", tmp_path / "more", 1)
    path = write_distserve(tmp_path / "m.exp", made_up())
    with pytest.raises(MeasuredRunError, match="only runs of this project's own engine"):
        execute_in(tmp_path / "more", config("task=retime", f"validation.measured=distserve:{path}"))
    with pytest.raises(ConfigError, match="validation.measured: task=retime needs a measured run"):
        config("task=retime")
    with pytest.raises(ConfigError, match="retiming.repeats: read by task=retime only"):
        config("retiming.repeats=2")
