"""The command line: every error of the user's is one line on stderr with exit code 2; defects keep their traceback."""

import contextlib
import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig

from harness import cli
from harness.config import RunConfig, load
from harness.config.composing.composer import Composer
from harness.errors import TraceError
from tests.harness.builders import ROOT, Launch, launcher, raising, stub_module


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launch:
    return launcher(monkeypatch, tmp_path)


USER_ERRORS = [
    (["blok_size=3"], "error: blok_size: unknown key; did you mean 'block_size'? (allowed here: task, engine, trace, "),
    (
        ["+blok_size=3"],
        "error: blok_size: unknown key; did you mean 'block_size'? (allowed here: task, engine, trace, ",
    ),
    (
        ["arrival.rate=inf"],
        "error: arrival.rate=inf: must be a number > 0, and finite; arrival=all_at_once sends all requests at once\n",
    ),
    (["devise=h200"], "error: devise: unknown key; did you mean 'device'? (allowed here: task, engine, trace, "),
    (["arrival.rtae=3"], "error: arrival.rtae: unknown key; did you mean 'rate'? (allowed here: time_scale, rate, "),
    (["arrival.concurrency=3"], "error: arrival.concurrency: belongs to arrival=closed_loop only\n"),
    (
        ["hydra.swep.dir=x"],
        "error: Could not override 'hydra.swep.dir'. To append to your config use +hydra.swep.dir=x\n",
    ),
    (
        ["device=laptop-cpu", "device.flops.fp8=1e13"],
        "error: Could not override 'device.flops.fp8'. To append to your config use +device.flops.fp8=1e13\n",
    ),
    (["device.flops.fp9=1e13"], "error: device.flops.fp9: unknown key; did you mean 'fp8'? (allowed here: bf16, fp8, "),
    (["calibration.widths.x=1"], "error: Could not override 'calibration.widths.x'. To append to your config use "),
    (["engine=smi"], "error: engine='smi': choose one of cpu, gpu, openai, sim; did you mean 'sim'?\n"),
    (["-m", "engine=sim,foo"], "error: engine='foo': choose one of cpu, gpu, openai, sim\n"),
    (["hydra/launcher=foo"], "error: hydra/launcher='foo': choose one of basic, "),
    (["engine=null"], "error: engine=null: must be the name of an option of the group\n"),
    (["device=[[1]]"], "error: device=[[1]]: must be the name of an option of the group\n"),
    (["~device=5"], "error: ~device=5: must be the name of an option of the group\n"),
    (["hydra/launcher=5"], "error: hydra/launcher=5: must be the name of an option of the group\n"),
    (["hydra.run.dir='${no.such.key}'"], "error: Interpolation key 'no.such.key' not found full_key: hydra.run.dir "),
    (["hydra.run.dir=''"], "error: hydra.run.dir='': must be the name of a folder\n"),
    (["-m", "seed=0", "hydra.sweep.dir=''"], "error: hydra.sweep.dir='': must be the name of a folder\n"),
    (["engine", "sim"], "error: 'engine': not of the form key=value ("),
    (["block_size=[1"], "error: 'block_size=[1': not of the form key=value ("),
    (["~foo"], "error: Could not delete from config. 'foo' does not exist.\n"),
    (
        ["--engine", "sim"],
        "error: unrecognized arguments: --engine; everything but Hydra's flags is given as key=value",
    ),
    (
        ["--experimental-rerun=results/config.pickle"],
        "error: unrecognized arguments: --experimental-rerun=results/config.pickle; everything but Hydra's flags is",
    ),
    (["-sc", "query=bash"], "error: --shell-completion query=bash: is asked by a shell, which sets COMP_LINE\n"),
    (["-m", "--cfg", "job"], "error: Only one of --run, --multirun, --cfg, --info and --shell_completion can be "),
    (["block_size=0"], "error: block_size=0: must be an integer >= 1 and <= 1048576\n"),
    (["trace=mooncake"], "error: trace.path: missing; give it as trace.path=...\n"),
    (
        ["task=report", "results=[none]"],
        "error: results: none is not a folder; give folders of earlier runs or sweeps\n",
    ),
    (
        ["task=report", "results=[.]"],
        "error: results: . holds no result (no summary.json in it or below it)\n",
    ),
    (["hydra.run.dir=/dev/null/x"], "error: [Errno 20] Not a directory: '/dev/null/x'\n"),
]


@pytest.mark.parametrize(("arguments", "expected"), USER_ERRORS, ids=lambda value: str(value)[:40])
@pytest.mark.sample(16)
def test_user_errors_are_one_line_and_exit_code_2(
    launch: Launch, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert launch(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(expected)
    assert err.count("\n") == 1 and err.endswith("\n")


def test_the_process_ends_with_the_line_and_the_code_alone(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "run.py"), "blok_size=3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: blok_size: unknown key")


def test_the_version_is_our_own(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch("--version") == 0
    assert capsys.readouterr().out.startswith("TwinServe ")


def test_help_needs_no_working_directory_and_explains_the_groups(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("--help") == 0
    out = capsys.readouterr().out
    lines = ("Usage: python run.py", "\n  scheduler\n", "\n  * vllm ", "block_size=16")
    assert all(line in out for line in lines)
    monkeypatch.setattr(sys, "argv", ["twinserve", "--help"])
    assert cli.main() == 0
    out = capsys.readouterr().out
    assert "Usage: twinserve [group=option ...]" in out and "run.py" not in out


def test_a_run_gets_the_checked_configuration_and_its_folder(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[RunConfig, Path]] = []
    stub_module(monkeypatch, "harness.terminal", run=lambda config, folder: calls.append((config, folder)))
    assert launch("block_size=32", "hydra.run.dir=here") == 0
    ((config, folder),) = calls
    assert config.block_size == 32
    assert folder == Path("here").resolve()
    assert load(folder / "config.yaml") == config


def test_runs_of_the_same_second_have_folders_of_their_own(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_module(monkeypatch, "harness.terminal", run=lambda config, folder: None)
    assert [launch(), launch()] == [0, 0]
    assert len(list(Path("outputs").iterdir())) == 2


def test_results_of_an_earlier_configuration_do_not_outlive_a_failed_run(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("here").mkdir()
    Path("here/summary.json").write_text("{}")
    stub_module(monkeypatch, "harness.terminal", run=raising(TraceError("x.csv: no usable row")))
    assert launch("hydra.run.dir=here") == 2
    assert not Path("here/summary.json").exists()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TraceError("x.csv: no usable row"), "error: x.csv: no usable row\n"),
        (OSError(28, "No space left on device", "a"), "error: [Errno 28] No space left on device: 'a'\n"),
        (MemoryError(), "error: task=run: out of memory, no result was written\n"),
        (MemoryError("9 GiB"), "error: task=run: out of memory, no result was written: 9 GiB\n"),
    ],
)
def test_errors_of_a_run_are_one_line(
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    expected: str,
) -> None:
    stub_module(monkeypatch, "harness.terminal", run=raising(error))
    assert launch() == 2
    assert capsys.readouterr().err == expected


def test_defects_keep_their_traceback(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_module(monkeypatch, "harness.terminal", run=raising(ValueError("a defect")))
    with pytest.raises(ValueError, match="a defect"):
        launch()


@pytest.mark.parametrize("arguments", [["blok_size=3"], ["block_size=0"]])
def test_hydra_full_error_shows_the_traceback_of_user_errors(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(Exception, match="blok_size|block_size"):
        launch(*arguments)


def test_an_interrupt_ends_with_130(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub_module(monkeypatch, "harness.terminal", run=raising(KeyboardInterrupt()))
    assert launch() == 130
    assert capsys.readouterr().err == "interrupted\n"


def interrupted_in_a_library() -> None:
    """As Hydra's reader of files in packages: what it cleans up is not there yet when a signal comes."""
    try:
        signal.raise_signal(signal.SIGINT)
        file = StringIO()
    finally:
        file.close()


def test_an_interrupt_that_a_library_turns_into_another_error_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert cli.launch(interrupted_in_a_library) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_interrupt_that_is_lost_while_hydra_composes_begins_no_run(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compose = Composer.load_configuration

    def load_configuration(*arguments: Any, **options: Any) -> DictConfig:
        with contextlib.suppress(UnboundLocalError):
            interrupted_in_a_library()
        return compose(*arguments, **options)

    monkeypatch.setattr(Composer, "load_configuration", load_configuration)
    stub_module(monkeypatch, "harness.terminal", run=raising(AssertionError("a run began")))
    assert launch() == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_report_compares_runs_and_the_jobs_of_sweeps(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[list[Path], Path]] = []

    def write_comparison(folders: list[Path], out_folder: Path, *drawn_as: object) -> SimpleNamespace:
        calls.append((folders, out_folder))
        return SimpleNamespace(paths=[out_folder / "table.csv"], left_out=[])

    stub_module(monkeypatch, "harness.studies.comparison.comparison", write_comparison=write_comparison)
    for name in ("a", "sweep/block_size=16", "sweep/block_size=128"):
        (tmp_path / name).mkdir(parents=True)
        text = '{"complete": true, "block_size": 16, "num_blocks": 1}'
        (tmp_path / name / "summary.json").write_text(text)
    assert launch("task=report", "results=[a,sweep]", "hydra.run.dir=out") == 0
    folders = [Path("a"), Path("sweep/block_size=16"), Path("sweep/block_size=128")]
    assert calls == [(folders, tmp_path / "out")]
    assert capsys.readouterr().out == f"comparison: {tmp_path / 'out'}\n  table.csv\n"


def started(folder: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command line of the shell, in which `$twinserve` is the program."""
    program = f"{sys.executable} {ROOT / 'run.py'}"
    settings = {"PATH": os.environ["PATH"], "twinserve": program, **environment}
    shell = ["bash", "-c", f"set -o pipefail; {command}"]
    return subprocess.run(shell, cwd=folder, env=settings, capture_output=True, text=True, check=False)


RUN = "$twinserve model=tiny device=laptop-cpu trace.num_requests=5 hydra.run.dir=out"


@pytest.mark.long
def test_a_reader_who_has_gone_and_an_ascii_terminal_cost_no_file(tmp_path: Path) -> None:
    done = started(tmp_path, f"{RUN} | head -1")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("SIMULATED")
    assert (tmp_path / "out" / "report.html").is_file()
    done = started(tmp_path, f"{RUN}/ascii plots=false", LC_ALL="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "?" in done.stdout and "Traceback" not in done.stderr
    assert (tmp_path / "out" / "ascii" / "summary.json").is_file()
    assert started(tmp_path, f"{RUN}/closed plots=false <&- >&- 2>&-").returncode == 0
    assert (tmp_path / "out" / "closed" / "summary.json").is_file()


@pytest.mark.long
def test_a_deleted_working_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = started(tmp_path, f"cd gone; rmdir ../gone; {RUN}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: the working directory does not exist any more")


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert cli.launch(lambda: None) == 0
    assert os.environ["HYDRA_FULL_ERROR"] == "0"
