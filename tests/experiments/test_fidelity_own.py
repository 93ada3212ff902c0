"""The jobs of experiments.fidelity on our own engine: valid ones, in turns, each of them once."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments import RESULTS
from experiments.fidelity import own_engine
from experiments.fidelity.lab import LATENCIES, STATISTICS, Lab
from harness.config import RunConfig
from harness.results.stored.files import RETIMED, SUMMARY
from simulator.profile.profile import META
from simulator.profile.profile_folder import load_profile
from tests.harness.builders import CONF, config

SAME = ("plans_identical", "preemptions_identical", "cache_hits_identical")
ERRORS = [(metric, statistic, 1.0, 2.0) for metric in LATENCIES for statistic in STATISTICS]


class FakeLab(Lab):
    """Reads the configuration of each job, and leaves what the job would."""

    def __init__(self, keep: bool) -> None:
        super().__init__("fake", keep)
        self.jobs: dict[str, RunConfig] = {}
        self.patience: list[float | None] = []
        self.published: list[str] = []

    def run(self, name: str, *settings: str) -> Path:
        assert name not in self.jobs
        self.jobs[name] = config(*settings)
        folder = self.scratch / name
        folder.mkdir(parents=True, exist_ok=True)
        document = {"errors": {}, **dict.fromkeys(SAME, True)}
        kept: dict[str, Any] = {"errors": {}, "levels": {}, "calibration": None}
        validation = json.dumps({"steps": document, "steps_of_repeats": [document], **kept})
        for path, text in ((SUMMARY, "{}"), (RETIMED, "{}"), ("validation.json", validation)):
            (folder / path).write_text(text)
        errors = pd.DataFrame(ERRORS, columns=["metric", "statistic", "error_pct", "noise_floor_pct"])
        errors.to_csv(folder / "errors.csv")
        return folder

    def profile(self, folder: Path, patience_s: float | None, *settings: str) -> None:
        wanted = config("task=profile", *settings, f"profile.out={folder}")
        assert wanted.profile.time_budget_s == 60
        self.patience.append(patience_s)
        folder.mkdir(parents=True, exist_ok=True)
        if patience_s is None:
            (folder / META).write_text("{}")

    def publish(self, profile: Path) -> None:
        self.published.append(profile.name)


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    monkeypatch.chdir(tmp_path)
    RESULTS.mkdir(parents=True)
    monkeypatch.setattr(own_engine, "RUN_EVERY", 2)
    return argparse.Namespace(
        traces=Path("traces"),
        requests=8,
        rates=None,
        threads=1,
        turns=3,
        profiling=60,
        device="h200",
        quick=False,
        models=list(own_engine.GPU_RATES),
    )


def test_the_cpu_is_profiled_and_measured_in_turns_and_nothing_twice(arguments: argparse.Namespace) -> None:
    lab = FakeLab(keep=False)
    own_engine.cpu(lab, arguments)
    measured = [name for name in lab.jobs if name.startswith(("run", "retimed"))]
    turns_of = {i: (0, 2) if i == 2 else (0, 1, 2) for i in range(5)}
    expected = [f"run{i}_{turn}" for i in range(5) for turn in (0, 2)]
    expected += [f"retimed{i}_{turn}" for i, turns in turns_of.items() for turn in turns]
    assert sorted(measured) == sorted(expected)
    order = [name.partition("_")[2] for name in measured]
    assert order == sorted(order)
    assert len(lab.patience) == 2 * 3 + 1 and lab.patience[-1] is None
    lengths = [lab.jobs[f"run{i}_0"].trace.num_requests for i in (3, 4)]  # type: ignore[union-attr]
    assert lengths == [8, 24] and {lab.jobs[f"run{i}_0"].num_blocks for i in (3, 4)} == {300}
    assert lab.published == ["profile"]
    for i, turns in turns_of.items():
        for name, step_times in (("", "measured"), ("_median", "median")):
            settings = lab.jobs[f"workload{i}{name}"].validation
            assert settings.measured == f"run:{lab.scratch}/run{i}_0" and settings.step_times == step_times
            assert len(settings.retimed) == len(turns)
            assert settings.repeats == ((f"run:{lab.scratch}/run{i}_2",) if name == "" else ())
    longer = FakeLab(keep=True)
    arguments.turns = 4
    own_engine.cpu(longer, arguments)
    more = [name for name, job in longer.jobs.items() if job.task != "validate"]
    assert more == ["retimed0_3", "retimed1_3", "retimed3_3", "retimed4_3"] and longer.patience == []


def test_a_gpu_serves_three_rates_of_each_model(arguments: argparse.Namespace) -> None:
    lab = FakeLab(keep=False)
    own_engine.gpu(lab, arguments)
    assert lab.patience == [None] * 2 and lab.published == ["profile_qwen3-0.6b", "profile_qwen3-8b"]
    predicted = [job for job in lab.jobs.values() if job.task == "validate"]
    assert len(predicted) == 6 and {job.device.name for job in predicted} == {"NVIDIA H200"}
    assert all(len(job.validation.repeats) == 1 and len(job.validation.retimed) == 2 for job in predicted)
    served = [job for job in lab.jobs.values() if job.task == "run"]
    assert len({(job.model.name, str(job.arrival)) for job in served}) == 6
    assert len({job.model.name for job in served}) == 2
    assert {job.engine.kind for job in served} == {"gpu"}
    interrupted = lab.scratch / "qwen3-8b_3_run1"
    (interrupted / SUMMARY).write_text('{"complete": false}')
    again = FakeLab(keep=True)
    arguments.models = ["qwen3-8b"]
    own_engine.gpu(again, arguments)
    assert [name for name, job in again.jobs.items() if job.task != "validate"] == [interrupted.name]
    assert again.patience == [] and len(again.jobs) == 1 + 3


def test_a_scaled_profile_has_all_its_times_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    committed = next((CONF.parent / "simulator" / "profiles").glob("*/tiny/tp1"))
    one, other = load_profile(committed), load_profile(Lab("fake", keep=False).scaled_profile(committed, 1.5))
    assert one.tables.keys() == other.tables.keys()
    for name, table in one.tables.items():
        scaled = table.copy()
        for column in set(table) & {"time_us", "spread_us"}:
            scaled[column] *= 1.5
        assert not scaled.equals(table)
        pd.testing.assert_frame_equal(scaled, other.tables[name])
