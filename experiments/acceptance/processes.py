"""Runs sections one after the other, each in a process group of its own that is killed after the section's limit.

The process of the next section starts when a section starts and imports what it needs meanwhile, so that a section does
not wait for imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments import ROOT

LEAST_S = 4.0  # a section with less time than this is left out
_GRACE_S = 1.0  # between asking a process to end and killing it
_TAIL = 3000  # characters of the output of a section that is not ok, kept in its entry

Entry = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """What one process runs.

    Attributes:
        target: module and function, as `experiments.acceptance.rates:device`.
        limit_s: seconds after which the process is killed.
        keeps: patterns of files below the repository that are packed into `<name>.zip` afterwards, however it ended.
    """

    name: str
    target: str
    limit_s: float
    keeps: tuple[str, ...] = ()


class SectionProcess:
    """The process of one section, which waits until `run` tells it to start."""

    def __init__(self, section: Section, folder: Path, rehearse: bool) -> None:
        self._is_closed = False
        self._result, self._log = folder / f"{section.name}.json", folder / f"{section.name}.log"
        command = [sys.executable, "-m", "experiments.acceptance.child", section.target, str(self._result)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, *(["--rehearse"] if rehearse else [])], cwd=ROOT, stdin=subprocess.PIPE, stdout=log,
                stderr=log, text=True, process_group=0,
            )  # fmt: skip

    def run(self, limit_s: float) -> Entry:
        """Run the section for at most `limit_s` seconds; returns its entry."""
        started, began = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{limit_s}\n")
            self._process.stdin.flush()
        was_killed = False
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            was_killed = True
        self.close()
        entry: Entry = {"checks": [], "record": {}}
        with contextlib.suppress(OSError, ValueError):
            entry |= json.loads(self._result.read_text())
        if "status" not in entry:
            entry |= self._violent_end(was_killed, limit_s)
        if entry["status"] not in ("ok", "skipped"):
            entry["output_tail"] = self._log.read_text(errors="replace")[-_TAIL:]
        return {**entry, "started": started, "seconds": round(time.monotonic() - began, 1)}

    def _violent_end(self, was_killed: bool, limit_s: float) -> Entry:
        """Status and error of a process that ended without saying how."""
        code = self._process.returncode
        if was_killed:
            return {"status": "killed", "error": f"killed after its limit of {limit_s:.0f} s"}
        if code == -signal.SIGKILL:
            return {"status": "out of memory", "error": "killed by the system, which does so when memory runs out"}
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        return {"status": "failed", "error": f"the process ended by {how}"}

    def close(self) -> None:
        """End the process and all that it started."""
        if self._is_closed:
            return
        self._is_closed = True
        for number, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, 30.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()


def run_sections(
    sections: Sequence[Section],
    limit_s: float,
    rehearse: bool,
    finished: Callable[[Section, Entry, str], None],
) -> None:
    """Run sections in their order within `limit_s` seconds in all; those for which no time is left are skipped.

    `finished` gets each section's entry and output when the section ends.
    """
    deadline = time.monotonic() + limit_s
    waiting: list[SectionProcess] = []
    with tempfile.TemporaryDirectory(prefix="acceptance-") as name:
        folder = Path(name)
        try:
            for i, section in enumerate(sections):
                process = waiting.pop() if waiting else SectionProcess(section, folder, rehearse)
                waiting += [SectionProcess(each, folder, rehearse) for each in sections[i + 1 : i + 2]]
                limit = min(section.limit_s, deadline - time.monotonic())
                if limit < min(LEAST_S, section.limit_s):
                    process.close()
                    entry: Entry = {"status": "skipped", "error": "no time was left", "checks": [], "record": {}}
                    finished(section, entry, "")
                    continue
                try:
                    entry = process.run(limit)
                finally:
                    process.close()
                finished(section, entry, (folder / f"{section.name}.log").read_text(errors="replace"))
        finally:
            for process in waiting:
                process.close()
