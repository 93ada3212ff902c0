"""Runs cases in child processes, so that one that hangs, dies or takes all memory is known and stops no other."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import re
import resource
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

from hydra import initialize_config_dir

from harness.config.composing.composer import compose_once
from tests.fuzzing.execution import Outcome, place_of, run_case
from tests.fuzzing.walk import Case
from tests.harness.builders import CONF

LONGEST_S = 20.0  # of processor time in a case
LONGEST_WAIT_S = 90.0  # of a case on the clock, without the time in which other processes kept it from a processor
MEMORY_BYTES = 3 << 30  # that a case may take beyond what a worker has
_SET_PARENT_DEATH_SIGNAL = 1  # of Linux's prctl
_GRACE_S = 10.0  # after which a worker that does not end when it is told is killed


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
        self._started, self._queued_before, self._queued = time.monotonic(), self._queued_s(), 0.0
        self.connection.send(case)
        return True

    def is_late(self) -> bool:
        """Whether the case takes too long on the clock, however loaded the machine is."""
        if time.monotonic() - self._started < LONGEST_WAIT_S:
            return False
        self._queued = max(self._queued, self._queued_s() - self._queued_before)  # that of ended children is not seen
        return time.monotonic() - self._started - self._queued > LONGEST_WAIT_S

    def _queued_s(self) -> float:
        """How long all threads of the process and of its children have waited for a processor."""
        assert self._process.pid is not None, "it was started"
        return sum(map(_queued_of, _family(self._process.pid)))

    def outcome(self) -> tuple[Case, Outcome]:
        """The case and how it ended; waits for nothing."""
        assert self._case is not None
        try:
            if not self.connection.poll():
                raise EOFError
            return self._case, self.connection.recv()
        except EOFError:
            is_late = self.is_late()
            if is_late:
                self._ask_where()
            self.end()
            lines = self._log().read_text(errors="replace")
            code = self._process.exitcode
            is_hang = is_late or code == -signal.SIGPROF
            kind = "hang" if is_hang else f"killed ({code})"
            frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', lines)
            self._start()
            where = place_of([(file, name) for file, _, name in frames])
            return self._case, Outcome("failed", f"{kind} in {where}", lines[:1500])

    def _ask_where(self) -> None:
        """Have the process write to its log where it is, which ends it."""
        assert self._process.pid is not None, "it was started"
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGPROF)
        self._process.join(_GRACE_S)

    def end(self) -> None:
        """Kill the process with those that it started."""
        assert self._process.pid is not None, "it was started"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()

    def _start(self) -> None:
        self.connection, child = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(child, self._folder, self._log()))
        self._process.start()
        child.close()

    def _log(self) -> Path:
        return self._folder.with_suffix(".log")


def _serve(connection: Connection, folder: Path, log: Path) -> None:
    """What a worker does. It ends with the process that started it, however that one ends."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    os.chdir(folder)
    compose_once()
    with log.open("w") as file, initialize_config_dir(config_dir=str(CONF), version_base=None):
        faulthandler.enable(file)
        faulthandler.register(signal.SIGPROF, file, chain=True)
        memory = _virtual_bytes() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        while True:
            try:
                case = connection.recv()
            except EOFError:
                return
            connection.send(_limited(case, folder / "out"))


def _limited(case: Case, out: Path) -> Outcome:
    """Run a case; one that takes too much processor time ends the process, which leaves in its log where it was."""
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    try:
        return run_case(case, out)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _family(pid: int) -> Iterator[int]:
    """The process and all that it started, and those started."""
    yield pid
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _family(int(child))


def _queued_of(pid: int) -> float:
    """How long the threads of a process have waited for a processor; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        files = Path(f"/proc/{pid}/task").glob("*/schedstat")
        return sum(int(file.read_text().split()[1]) for file in files) / 1e9
    return 0.0


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
