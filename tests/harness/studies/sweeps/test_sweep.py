"""Sweeps: resuming, failing jobs, the comparison at the end, interrupts, and worker processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from harness.config import RunConfig, load, to_yaml
from harness.errors import TwinServeError
from harness.studies.sweeps import sweep
from harness.studies.sweeps.finished import is_complete, is_finished
from tests.harness.builders import ROOT, Launch, config, execute_in, launcher

SUMMARY = '{"complete": true, "block_size": 16, "num_blocks": 1}'
FAILING = 64  # the block size at which the stub job fails


class Recorder:
    """Stands in for the run and for the comparison, and remembers what was asked of them."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.compared: list[list[str]] = []
        self.error: BaseException = RuntimeError("boom\nsecond line")
        self.comparison_error: Exception | None = None

    def execute(self, config: RunConfig, folder: Path) -> None:
        self.jobs.append(folder.name)
        (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        if config.block_size == FAILING:
            raise self.error
        (folder / "summary.json").write_text(SUMMARY, encoding="utf-8")

    def compare(self, folders: list[Path], out_folder: Path, *drawn_as: object) -> SimpleNamespace:
        if self.comparison_error is not None:
            raise self.comparison_error
        assert out_folder == Path("m")
        self.compared.append([folder.name for folder in folders])
        return SimpleNamespace(paths=[], left_out=[])


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    report = ModuleType("harness.studies.comparison.comparison")
    report.write_comparison = recorder.compare  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "harness.studies.comparison.comparison", report)
    return recorder


@pytest.fixture
def run_sweep(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launch:
    """A sweep over the given overrides in the folder `m`; returns the process's exit code."""

    def job(cfg: DictConfig) -> None:
        sweep.run_job(cfg, Path(HydraConfig.get().runtime.output_dir), recorder.execute)

    launch = launcher(monkeypatch, tmp_path, "-m", "hydra.sweep.dir=m", job=job)

    def call(*overrides: str) -> int:
        try:
            return launch(*overrides)
        except SystemExit as stop:
            assert isinstance(stop.code, int)
            return stop.code

    return call


def test_jobs_are_run_and_compared_in_the_order_in_which_they_are_given(run_sweep: Launch, recorder: Recorder) -> None:
    assert run_sweep("block_size=128,16") == 0
    assert recorder.jobs == ["block_size=128", "block_size=16"]
    assert recorder.compared == [["block_size=128", "block_size=16"]]
    assert load(Path("m/block_size=16/config.yaml")).progress is False  # the sweep has a bar of its own


def test_an_extended_sweep_runs_only_what_is_new(
    run_sweep: Launch, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    run_sweep("block_size=16,32")
    capsys.readouterr()
    assert run_sweep("block_size=16,32,128", "progress=false") == 0
    assert recorder.jobs == ["block_size=16", "block_size=32", "block_size=128"]
    assert capsys.readouterr().out.count("skipped") == 2
    assert recorder.compared[-1] == ["block_size=16", "block_size=32", "block_size=128"]


def test_a_job_is_run_again_when_its_result_is_incomplete_or_of_another_configuration(
    run_sweep: Launch, recorder: Recorder
) -> None:
    run_sweep("block_size=16,32,128,256")
    recorder.jobs.clear()
    Path("m/block_size=16/summary.json").write_text(SUMMARY.replace("true", "false"))
    Path("m/block_size=32/summary.json").write_text(SUMMARY[:20])
    other = load(Path("m/block_size=128/config.yaml")).model_copy(update={"seed": 1})
    Path("m/block_size=128/config.yaml").write_text(to_yaml(other))
    assert run_sweep("block_size=16,32,128,256") == 0
    assert recorder.jobs == ["block_size=16", "block_size=32", "block_size=128"]


def test_a_job_is_run_again_when_the_file_of_its_trace_has_changed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_time,num_prompt_tokens,num_output_tokens\n0,5,3\n1,6,2\n")
    settings = config("trace=csv", f"trace.path={trace}", "arrival=trace", "progress=false", "plots=false")
    execute_in(tmp_path / "job", settings)
    assert is_finished(settings, tmp_path / "job")
    trace.write_text(trace.read_text().replace("6,2", "6,4"))
    assert not is_finished(settings, tmp_path / "job")


def test_a_job_is_run_again_when_the_content_of_an_input_has_changed(tmp_path: Path) -> None:
    trace, calibration = tmp_path / "trace.csv", tmp_path / "calibration.yaml"
    trace.write_text("arrival_time,num_prompt_tokens,num_output_tokens\n0,5,3\n1,6,2\n")
    fitted = "fitted_on: {measured: a, data_sha256: b, part: all, num_requests: 1}"
    calibration.write_text(f"cost: linear\nconstants: {{step_s: 0.001}}\n{fitted}\n")
    settings = config(
        "trace=csv", f"trace.path={trace}", "arrival=trace", "progress=false", "cost=linear",
        f"cost.calibration={calibration}",
    )  # fmt: skip
    execute_in(tmp_path / "job", settings)
    for path, old, new in ((trace, "6,2", "6,4"), (calibration, "0.001", "0.002")):
        text, times = path.read_text(), path.stat()
        path.write_text(text.replace(old, new))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert not is_finished(settings, tmp_path / "job"), path
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert is_finished(settings, tmp_path / "job"), path


def test_a_failing_job_is_recorded_and_the_others_go_on(
    run_sweep: Launch, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_sweep(f"block_size=16,{FAILING},128") == 1
    assert recorder.jobs == ["block_size=16", f"block_size={FAILING}", "block_size=128"]
    assert recorder.compared == [["block_size=16", f"block_size={FAILING}", "block_size=128"]]
    failure = json.loads(Path(f"m/block_size={FAILING}/failed.json").read_text())
    assert failure["error"] == "RuntimeError: boom second line"
    assert failure["traceback"].startswith("Traceback") and "raise self.error" in failure["traceback"]
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"2/3  block_size={FAILING}   failed: RuntimeError: boom second line"
    assert second == f"1 job failed: m/block_size={FAILING}/failed.json"


def test_a_configuration_that_is_refused_fails_its_job_alone(run_sweep: Launch, recorder: Recorder) -> None:
    assert run_sweep("block_size=0,16") == 1
    assert recorder.jobs == ["block_size=16"]
    error = json.loads(Path("m/block_size=0/failed.json").read_text())["error"]
    assert error == "block_size=0: must be an integer >= 1 and <= 1048576"


def test_the_failures_of_earlier_sweeps_do_not_fail_this_one(run_sweep: Launch, recorder: Recorder) -> None:
    assert run_sweep(f"block_size={FAILING}") == 1
    assert run_sweep("block_size=16") == 0
    assert Path(f"m/block_size={FAILING}/failed.json").exists()


def test_success_removes_the_record_of_an_earlier_failure(run_sweep: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sweep(f"block_size={FAILING}")
    monkeypatch.setattr(sys.modules[__name__], "FAILING", -1)
    assert run_sweep("block_size=64") == 0
    assert not Path("m/block_size=64/failed.json").exists()


def test_a_result_beside_a_failure_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(SUMMARY)
    assert is_complete(tmp_path)
    (tmp_path / "failed.json").write_text("{}")
    assert not is_complete(tmp_path)


def test_a_comparison_that_fails_is_an_error_of_the_sweep(
    run_sweep: Launch, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.comparison_error = TwinServeError("tables differ")
    assert run_sweep("block_size=16") == 1
    assert capsys.readouterr().err == "error: no comparison: tables differ\n"


def test_an_interrupt_ends_the_sweep_and_compares_what_is_done(
    run_sweep: Launch, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.error = KeyboardInterrupt()
    assert run_sweep(f"block_size=16,{FAILING},128") == 130
    assert recorder.jobs == ["block_size=16", f"block_size={FAILING}"]
    assert recorder.compared == [["block_size=16"]]
    assert "hydra.sweep.dir=m" in capsys.readouterr().err


def test_overrides_that_are_paths_or_long_make_one_folder_each(run_sweep: Launch, recorder: Recorder) -> None:
    assert run_sweep("model.name=a/b,a_b," + "c" * 300) == 0
    assert len(set(recorder.jobs)) == 3
    assert sorted(path.name for path in Path("m").iterdir() if path.is_dir()) == sorted(recorder.jobs)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=1,2", "hydra.sweep.subdir=same"], "jobs that differ in seed alone would share a folder"),
        (["seed=1,2", "block_size=16,32", "hydra.sweep.subdir=s${seed}"], "jobs that differ in block_size alone"),
        (["plots=true,false"], "jobs that differ in plots alone would share a folder"),
        (["seed=range(0)"], "seed=range(0): has no value, so that the sweep has no job"),
    ],
)
@pytest.mark.sample(2)
def test_jobs_without_a_folder_of_their_own_and_no_job_are_refused(
    run_sweep: Launch, recorder: Recorder, overrides: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_sweep(*overrides) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert recorder.jobs == [] and not recorder.compared


@pytest.mark.parametrize("subdir", ["${hydra.job.num}", "b${block_size}-s${seed}", "x${hydra.job.override_dirname}"])
@pytest.mark.sample(1)
def test_folders_may_be_named_in_other_ways(run_sweep: Launch, recorder: Recorder, subdir: str) -> None:
    assert run_sweep("seed=1,2", "block_size=16,32", f"hydra.sweep.subdir='{subdir}'") == 0
    assert len(set(recorder.jobs)) == 4


@pytest.mark.long
@pytest.mark.parametrize("goes_on", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_worker_processes_of_the_joblib_launcher_do_the_same_without_progress_bars(
    tmp_path: Path, goes_on: bool
) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs hydra-joblib-launcher")
    command = [sys.executable, str(ROOT / "run.py"), "-m", "block_size=16,0,32", "hydra.sweep.dir=m", "plots=false"]
    command += ["trace.num_requests=5", "cost=roofline", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    environment = {"PYTHONPATH": str(ROOT)}
    first = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert first.returncode == 1
    assert (tmp_path / "m/comparison.csv").read_text().count("\n") == 4, "a row for each job"
    assert first.stderr.count("\n") == 2 and "failed: block_size=0: must be" in first.stderr
    assert load(tmp_path / "m/block_size=16/config.yaml").progress is False
    if goes_on:
        alone = [*command[:-1], "hydra.launcher.n_jobs=1"]
        again = subprocess.run(alone, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert again.stdout.count("skipped") == 2
