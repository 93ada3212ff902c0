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
from harness.results.stored.files import SUMMARY
from simulator.profile.profile import META
from tests.harness.builders import config

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
        for path, text in ((SUMMARY, "{}"), ("validation.json", validation)):
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
    return argparse.Namespace(
        traces=Path("traces"),
        requests=8,
        rates=None,
        threads=1,
        runs=2,
        turns=3,
        profiling=60,
        device="h200",
        quick=False,
        models=list(own_engine.GPU_RATES),
    )


@pytest.mark.long
def test_the_cpu_is_profiled_and_measured_in_turns_and_nothing_twice(arguments: argparse.Namespace) -> None:
    lab = FakeLab(keep=False)
    own_engine.cpu(lab, arguments)
    measured = [name for name in lab.jobs if name.startswith("run")]
    turns_of = {i: (0, 2) if i == 2 else (0, 1, 2) for i in range(5)}
    assert sorted(measured) == sorted(f"run{i}_{turn}" for i, turns in turns_of.items() for turn in turns)
    order = [name.partition("_")[2] for name in measured]
    assert order == sorted(order)
    assert len(lab.patience) == 2 * 3 + 1 and lab.patience[-1] is None
    lengths = [lab.jobs[f"run{i}_0"].trace.num_requests for i in (3, 4)]  # type: ignore[union-attr]
    assert lengths == [8, 24] and {lab.jobs[f"run{i}_0"].num_blocks for i in (3, 4)} == {300}
    assert lab.published == ["profile"]
    for i, turns in turns_of.items():
        settings = lab.jobs[f"workload{i}"].validation
        assert settings.measured == f"run:{lab.scratch}/run{i}_0"
        assert settings.repeats == tuple(f"run:{lab.scratch}/run{i}_{turn}" for turn in turns[1:])
    longer = FakeLab(keep=True)
    arguments.turns = 4
    own_engine.cpu(longer, arguments)
    more = [name for name, job in longer.jobs.items() if job.task != "validate"]
    assert more == ["run0_3", "run1_3", "run3_3", "run4_3"] and longer.patience == []


@pytest.mark.long
def test_a_gpu_serves_each_model_at_its_rates(arguments: argparse.Namespace) -> None:
    lab = FakeLab(keep=False)
    own_engine.gpu(lab, arguments)
    assert lab.patience == [None] * 2 and lab.published == ["profile_qwen3-0.6b", "profile_qwen3-8b"]
    predicted = [job for job in lab.jobs.values() if job.task == "validate"]
    assert len(predicted) == 3 and {job.device.name for job in predicted} == {"NVIDIA H200"}
    assert all(len(job.validation.repeats) == 1 for job in predicted)
    served = [job for job in lab.jobs.values() if job.task == "run"]
    assert len({(job.model.name, str(job.arrival)) for job in served}) == 3
    assert len({job.model.name for job in served}) == 2
    assert {job.engine.kind for job in served} == {"gpu"}
    interrupted = lab.scratch / "qwen3-8b_10_run1"
    (interrupted / SUMMARY).write_text('{"complete": false}')
    again = FakeLab(keep=True)
    arguments.models = ["qwen3-8b"]
    own_engine.gpu(again, arguments)
    assert [name for name, job in again.jobs.items() if job.task != "validate"] == [interrupted.name]
    assert again.patience == [] and len(again.jobs) == 1 + 2
