"""Ctrl-C and SIGTERM at every stage: nothing that was recorded is lost, and no traceback is printed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import interrupts
from harness.results.stored.files import read_results
from tests.harness.builders import ROOT

# Starts run.py and says when it handles signals; one that meets the interpreter's own start cannot be handled.
STARTED = """
import runpy, sys
from harness import interrupts

end_at_once = interrupts.end_at_once

def tell():
    end_at_once()
    print("started", flush=True)

interrupts.end_at_once = tell
runpy.run_path("run.py", run_name="__main__")
"""
# Interrupts itself as often as the first argument says while the results are written.
INTERRUPTED_WRITING = """
import os, runpy, signal, sys, time
from harness.results.stored import files

write_table = files.write_table
times = int(sys.argv.pop(1))

def interrupt_and_write(path, table):
    global times
    while times:
        os.kill(os.getpid(), signal.SIGINT)
        times -= 1
    write_table(path, table)

files.write_table = interrupt_and_write
runpy.run_path("run.py", run_name="__main__")
"""
# Drops a block of forwarded signals that has received one.
DROPPED = """
import os, signal, time
from harness import interrupts

with interrupts.raised():
    block = interrupts.Forwarded()
    block.__enter__()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
    del block
"""
# A policy that is in no hurry and leaves a file for each process in which it decides.
UNHURRIED = """
import os, time
from pathlib import Path
from engine.core.planning.policy import BasePolicy

class Unhurried(BasePolicy):
    def admit(self, need, state):
        Path(__file__).with_name(f"{os.getpid()}.serves").touch()
        time.sleep(0.005)
        return super().admit(need, state)
"""
SMALL = ("trace.num_requests=30", "plots=false", "cost=roofline")


def start(code: str, *arguments: str, modules: Path = ROOT) -> subprocess.Popen[str]:
    command, environment = [sys.executable, "-c", code, *arguments], {**os.environ, "PYTHONPATH": str(modules)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)


def test_noted_signals_call_once_and_held_ones_wait() -> None:
    calls: list[str] = []
    with interrupts.raised():
        with interrupts.noted(lambda: calls.append("stop")) as signals:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        assert (calls, signals) == (["stop"], [signal.SIGTERM, signal.SIGINT])
        done = False
        with pytest.raises(KeyboardInterrupt), interrupts.held(), interrupts.held():
            signal.raise_signal(signal.SIGTERM)
            done = True
        assert done
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_signals_that_were_blocked_when_the_program_was_started_come() -> None:
    handlers = [signal.getsignal(number) for number in interrupts.SIGNALS]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, interrupts.SIGNALS)
    try:
        interrupts.end_at_once()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()).isdisjoint(interrupts.SIGNALS)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in zip(interrupts.SIGNALS, handlers, strict=True):
            signal.signal(number, handler)


def test_a_block_of_forwarded_signals_that_is_dropped_is_silent() -> None:
    process = start(DROPPED)
    assert process.communicate(timeout=90) == ("", "") and process.returncode == 0


@pytest.mark.long
def test_an_interrupt_of_a_start_is_one_line(tmp_path: Path) -> None:
    delays = (0.0, 0.5)
    processes = [
        start(STARTED, "trace.num_requests=400000", "plots=false", f"hydra.run.dir={tmp_path / str(delay)}")
        for delay in delays
    ]
    for i, (delay, process) in enumerate(zip(delays, processes, strict=True)):
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        time.sleep(delay)
        process.send_signal(signal.SIGTERM if i % 2 else signal.SIGINT)
    for process in processes:
        _, errors = process.communicate(timeout=90)
        assert process.returncode == interrupts.INTERRUPTED
        lines = [line for line in errors.splitlines() if not line.startswith("trace: ")]
        assert lines == ["interrupted"]


@pytest.mark.long
def test_the_second_interrupt_does_not_disturb_the_writing_and_the_third_ends_it(tmp_path: Path) -> None:
    processes = {
        times: start(INTERRUPTED_WRITING, str(times), *SMALL, f"hydra.run.dir={tmp_path / str(times)}")
        for times in (2, 3)
    }
    errors = {times: process.communicate(timeout=90)[1] for times, process in processes.items()}
    assert [process.returncode for process in processes.values()] == [interrupts.INTERRUPTED] * 2
    assert not any("Traceback" in text for text in errors.values())
    assert "interrupt once more to lose it" in errors[2]
    assert len(read_results(tmp_path / "2")[0].requests) == 30
    assert not (tmp_path / "3" / "summary.json").exists()


@pytest.mark.slow
def test_jobs_in_worker_processes_write_what_they_have(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs hydra-joblib-launcher")
    (tmp_path / "unhurried.py").write_text(UNHURRIED)
    process = start(
        STARTED, "-m", "seed=1,2,3", "trace.num_requests=30000", "plots=false", f"hydra.sweep.dir={tmp_path}",
        "scheduler.policy=unhurried:Unhurried", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", modules=tmp_path,
    )  # fmt: skip
    try:
        wait_for(lambda: len(list(tmp_path.glob("*.serves"))) == 2, process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == interrupts.INTERRUPTED
    assert "Traceback" not in errors and errors.endswith("interrupted\n")
    written = list(tmp_path.glob("*/summary.json"))
    assert len(written) == 2, "the jobs that ran wrote their results, and the third was not begun"
    for path in written:
        summary = json.loads(path.read_text())
        assert (summary["complete"], summary["ended_early"]) == (False, "interrupted")
