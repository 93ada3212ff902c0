"""Runs one case in this process, as the command line would, and judges how it ended."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import hydra
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from harness import cli, jobs
from harness.config import RunConfig, parse
from harness.studies.sweeps import sweep
from tests.fuzzing.figures import problems
from tests.fuzzing.files import PLACE
from tests.fuzzing.walk import Case
from tests.harness.builders import CONF, ROOT

_NOTE = re.compile(r"(trace|validation\.measured|/\S+): (?!error|.*Warning)")  # on what is read, printed to stderr
_DEFECT_OF_A_JOB = re.compile(r"failed: (?!OSError|FileNotFoundError|NotADirectoryError|PermissionError)(\w+): ")


@dataclass(frozen=True)
class Outcome:
    """How a case ended.

    Attributes:
        kind: refused (one line for the user), done, or failed.
        signature: of a failure: what is the same for all cases with the same cause.
        detail: what was printed, or the end of the traceback.
    """

    kind: str
    signature: str = ""
    detail: str = ""


def run_case(case: Case, out: Path) -> Outcome:
    """Run a case in `out`, which is emptied first, and judge how it ended."""
    damaged = out.with_name("damaged")
    for folder in (out, damaged):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    if case.damage is not None:
        place = str(case.damage.apply(damaged))
        case = replace(case, overrides=tuple(text.replace(PLACE, place) for text in case.overrides))
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr), warnings.catch_warnings():
            warnings.simplefilter("always", RuntimeWarning)
            code = _launch(case, out)
        return _judge(case, code, stderr.getvalue(), out)
    except Exception as error:
        frames = [(frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
        signature = f"{type(error).__name__} in {place_of(frames[::-1])}"
        return Outcome("failed", signature, "".join(traceback.format_exception(error))[-1500:])


def place_of(frames: list[tuple[str, str]]) -> str:
    """The innermost frame of this project, as file:function; `frames` begin with the innermost."""
    inside = [(file, name) for file, name in frames if str(ROOT) in file and "/tests/" not in file]
    file, name = inside[0] if inside else frames[0] if frames else ("?", "?")
    return f"{file.removeprefix(str(ROOT) + '/')}:{name}"


def _launch(case: Case, out: Path) -> object:
    """The exit code of the command line."""
    os.environ["HYDRA_FULL_ERROR"] = "0"
    sys.argv = ["run.py", *case.arguments()]
    if not case.is_whole:
        return cli.launch(lambda: jobs.execute(parse(compose("config", overrides=case.arguments())), out))
    sys.argv[1:1] = [f"hydra.run.dir={out}", f"hydra.sweep.dir={out}"]
    state = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        return cli.launch(_main)
    except SystemExit as stop:
        return stop.code
    finally:
        HydraConfig.instance().cfg = None
        GlobalHydra.instance().clear()
        GlobalHydra.instance().hydra = state


@hydra.main(version_base=None, config_path=str(CONF), config_name="config")
def _main(cfg: DictConfig) -> None:
    jobs.run_job(cfg)


def _judge(case: Case, code: object, stderr: str, out: Path) -> Outcome:
    lines = [line for line in stderr.strip().splitlines() if not _NOTE.match(line)]
    if code == 0 and lines:
        text = re.sub(r"^.*?([\w/]+\.py):\d+", r"\1", lines[0])
        return Outcome("failed", f"printed to stderr: {text[:80]}", stderr[:1500])
    found = [problem for folder in (out, *out.glob("*/")) for problem in problems(folder)]
    if found:
        return Outcome("failed", re.sub(r"-?\d[\d.e+-]*", "N", found[0]), "; ".join(found))
    if code == 0:
        return Outcome("done")
    if case.is_sweep and code == sweep.SOME_JOB_FAILED:
        defect = _DEFECT_OF_A_JOB.search(stderr)
        return (
            Outcome("failed", f"{defect[1]} in a job", stderr[:1500]) if defect else Outcome("refused", detail=stderr)
        )
    if len(lines) != 1 or not lines[0].startswith("error: "):
        return Outcome("failed", f"exit code {code} with {len(lines)} lines", stderr[:1500])
    if not _names_something(lines[0], case):
        return Outcome("failed", f"names nothing: {lines[0][:50]}", stderr[:1500])
    return Outcome("refused", detail=lines[0])


def _names_something(line: str, case: Case) -> bool:
    """Whether a message has the name of a file, or of a key or value that was given."""
    given = {part for text in case.arguments() for part in (text, *re.split(r"[][=,/+~']", text))}
    return "/" in line or any(name in line for name in (*RunConfig.model_fields, *(given - {""}), "''"))
