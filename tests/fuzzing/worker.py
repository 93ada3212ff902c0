"""Runs cases in child processes, so that one that hangs, dies or takes all memory is known and stops no other."""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import functools
import io
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO

import hydra
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from harness import cli
from harness.config import parse
from tests.fuzzing.figures import problems
from tests.fuzzing.walk import Case
from tests.harness.builders import CONF, ROOT

LONGEST_S = 20.0  # of a case
MEMORY_BYTES = 3 << 30  # that a case may take beyond what a worker has
_GRACE_S = 10.0  # after which a worker that did not end itself is killed


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


def run_cases(cases: Iterable[Case], num_workers: int) -> Iterator[tuple[Case, Outcome]]:
    """Run all cases; yields each with its outcome as soon as it has ended."""
    left = iter(cases)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        workers = [_Worker(Path(name) / str(number)) for number in range(num_workers)]
        try:
            busy = [worker for worker in workers if worker.take(next(left, None))]
            while busy:
                ready = wait([worker.connection for worker in busy], timeout=1.0)
                for worker in list(busy):
                    if worker.connection not in ready and not worker.is_late():
                        continue
                    yield worker.outcome()
                    if not worker.take(next(left, None)):
                        busy.remove(worker)
        finally:
            for worker in workers:
                worker.end()


class _Worker:
    """A child process that runs one case after the other, and is replaced when it dies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._case: Case | None = None
        folder.mkdir()
        self._start()

    def take(self, case: Case | None) -> bool:
        """Start a case; False where there is none."""
        self._case = case
        if case is None:
            return False
        self._deadline = time.monotonic() + LONGEST_S + _GRACE_S
        self.connection.send(case)
        return True

    def is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def outcome(self) -> tuple[Case, Outcome]:
        """The case and how it ended; waits for nothing."""
        assert self._case is not None
        try:
            if not self.connection.poll():
                raise EOFError
            return self._case, self.connection.recv()
        except EOFError:
            self.end()
            lines = self._log().read_text(errors="replace")
            kind = "hang" if "Timeout" in lines or self.is_late() else f"killed ({self._process.exitcode})"
            frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', lines)
            self._start()
            where = _place([(file, name) for file, _, name in frames])
            return self._case, Outcome("failed", f"{kind} in {where}", lines[:1500])

    def end(self) -> None:
        self._process.kill()
        self._process.join()

    def _start(self) -> None:
        self.connection, child = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(child, self._folder, self._log()), daemon=True)
        self._process.start()
        child.close()

    def _log(self) -> Path:
        return self._folder.with_suffix(".log")


def _serve(connection: Connection, folder: Path, log: Path) -> None:
    """What a worker does."""
    os.chdir(folder)
    with log.open("w") as file, initialize_config_dir(config_dir=str(CONF), version_base=None):
        faulthandler.enable(file)
        memory = _virtual_bytes() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        while True:
            try:
                case = connection.recv()
            except EOFError:
                return
            connection.send(run_case(case, folder / "out", file))


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def run_case(case: Case, out: Path, log: IO[str] | None = None) -> Outcome:
    """Run a case in `out`, which is new, and judge how it ended. A case that takes too long ends the process."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    stdout, stderr = io.StringIO(), io.StringIO()
    if log is not None:
        faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=log)
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr), warnings.catch_warnings():
            warnings.simplefilter("always", RuntimeWarning)
            code = _launch(case, out)
        return _judge(case, code, stderr.getvalue(), out)
    except Exception as error:
        frames = [(frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
        signature = f"{type(error).__name__} in {_place(frames[::-1])}"
        return Outcome("failed", signature, "".join(traceback.format_exception(error))[-1500:])
    finally:
        faulthandler.cancel_dump_traceback_later()


def _launch(case: Case, out: Path) -> object:
    """The exit code of the command line."""
    os.environ["HYDRA_FULL_ERROR"] = "0"
    sys.argv = ["run.py", *case.arguments()]
    if not case.is_whole:
        return cli.launch(lambda: cli.execute(parse(_composed(case)), out))
    sys.argv += [f"hydra.run.dir={out}"]
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
    cli.run_job(cfg)


def _composed(case: Case) -> DictConfig:
    """The composition of the case's base with the overrides applied as Hydra applies them."""
    overrides = OverridesParser.create().parse_overrides(list(case.overrides))
    if any(override.is_delete() or override.is_sweep_override() or _is_group(override) for override in overrides):
        return compose("config", overrides=case.arguments())
    cfg = copy.deepcopy(_base(case.base))
    OmegaConf.set_struct(cfg, True)
    ConfigLoaderImpl._apply_overrides_to_config(overrides, cfg)
    return cfg


def _is_group(override: Override) -> bool:
    return override.package is not None or (CONF / override.key_or_group).is_dir()


@functools.lru_cache(maxsize=64)
def _base(overrides: tuple[str, ...]) -> DictConfig:
    return compose("config", overrides=list(overrides))


def _judge(case: Case, code: object, stderr: str, out: Path) -> Outcome:
    lines = [line for line in stderr.strip().splitlines() if not line.startswith("trace: ")]
    if code == 0:
        if lines:
            text = re.sub(r"^.*?([\w/]+\.py):\d+", r"\1", lines[0])
            return Outcome("failed", f"printed to stderr: {text[:80]}", stderr[:1500])
        found = list(problems(out))
        return (
            Outcome("failed", re.sub(r"-?\d[\d.e+-]*", "N", found[0]), "; ".join(found)) if found else Outcome("done")
        )
    if len(lines) != 1 or not lines[0].startswith("error: ") or len(lines[0]) < len("error: ") + 10:
        return Outcome("failed", f"exit code {code} with {len(lines)} lines", stderr[:1500])
    return Outcome("refused", detail=lines[0])


def _place(frames: list[tuple[str, str]]) -> str:
    """The innermost frame of this project, frames given from the innermost on."""
    inside = [(file, name) for file, name in frames if str(ROOT) in file and "/tests/" not in file]
    file, name = inside[0] if inside else frames[0] if frames else ("?", "?")
    return f"{file.removeprefix(str(ROOT) + '/')}:{name}"
