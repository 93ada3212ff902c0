"""The tables of a run, how they are kept in a folder, and what is recorded about the machine they come from.

<folder>/requests.parquet   one row per request
         steps.parquet      one row per engine step
         gaps.parquet       every gap between tokens, pooled: value_s, weight
         summary.json       settings and metrics; written last, so that where it is the folder is whole
         failed.json        {"error": ...} instead, where a job of a sweep ended with an error

Columns of the requests table (times in s since the start of the replay, NaN where a thing never happened):

    request_id, session_id and turn if the trace has them
    status, error                            finished, rejected, aborted or unfinished; why it was rejected
    arrival_time, replay_lag                 when it was meant to come; how much later it was issued, on a real clock
    first_scheduled_time, first_token_time, finish_time
    num_prompt_tokens, num_requested_tokens, num_output_tokens      prompt; asked for; really generated
    num_cached_tokens                        prompt tokens found in the prefix cache at the first admission
    num_recomputed_tokens, num_preemptions
    ttft, tpot, e2el, queue_time             s

and of the steps table:

    step, start_time, duration               s
    num_prefill_seqs, num_decode_seqs, num_prefill_tokens
    num_context_tokens                       sum of the contexts of the decodes
    num_running, num_waiting, num_used_blocks, num_preempted
    num_first_admitted_tokens, num_cached_tokens    prompt tokens of first admissions; of these, found in the cache
    schedule_time, prepare_time, execute_time, sample_time          s; NaN in a simulation
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import TwinServeError
from harness.results.metrics import Gaps, json_ready

REQUESTS, STEPS, GAPS = "requests.parquet", "steps.parquet", "gaps.parquet"
SUMMARY, FAILED = "summary.json", "failed.json"
VALIDATION, ERRORS, CALIBRATION = "validation.json", "errors.csv", "calibration.yaml"  # of the other tasks
RETIMED, STEP_TIMES = "retimed.json", "step_times.parquet"
_ALWAYS = {"block_size", "complete", "num_blocks"}
_PACKAGES = ("numpy", "pandas", "simpy", "twinserve", "torch")


@dataclass(frozen=True, eq=False)
class RunResult:
    """What one run leaves behind, whichever engine made it.

    requests: one row per request; times and latencies in s, NaN where a thing never happened; status is finished,
    rejected, aborted or unfinished. steps: one row per engine step, in time order, times in s. num_blocks: size of the
    KV block pool. complete: False for a run that was interrupted. meta: settings, versions, hardware, notes.
    """

    requests: pd.DataFrame
    steps: pd.DataFrame
    gaps: Gaps
    num_blocks: int
    block_size: int
    complete: bool
    meta: dict[str, Any]


def write_results(result: RunResult, summary: dict[str, Any], folder: Path) -> None:
    """Write the tables and the summary; each file is whole or absent, and the summary comes last.

    What an earlier run left in the folder stops counting first: no mix of two runs can look whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (SUMMARY, FAILED):
        (folder / stale).unlink(missing_ok=True)
    text = json.dumps(json_ready(summary), indent=2, allow_nan=False) + "\n"
    for name, table in ((REQUESTS, result.requests), (STEPS, result.steps), (GAPS, _gap_table(result.gaps))):
        _write_table(folder / name, table)
    write_whole(folder / SUMMARY, lambda path: path.write_text(text, encoding="utf-8"))


def read_results(folder: Path) -> tuple[RunResult, dict[str, Any]]:
    """The result in a folder and its summary, which also serves as the result's `meta`.

    Raises TwinServeError where the folder or one of its files is missing or cannot be read.
    """
    summary = read_summary(folder)
    gaps = read_table(folder / GAPS, ["value_s", "weight"])
    result = RunResult(
        requests=read_table(folder / REQUESTS),
        steps=read_table(folder / STEPS),
        gaps=Gaps(gaps["value_s"].to_numpy(), gaps["weight"].to_numpy()),
        num_blocks=summary["num_blocks"],
        block_size=summary["block_size"],
        complete=summary["complete"],
        meta=summary,
    )
    return result, summary


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary in a result folder; raises TwinServeError where there is none or it cannot be read."""
    path = folder / SUMMARY
    if not folder.is_dir():
        raise TwinServeError(f"{folder}: no such folder")
    if not path.is_file():
        raise TwinServeError(f"{folder}: no {SUMMARY} in it, so not the folder of a run that ended")
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TwinServeError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(summary, dict) or not summary.keys() >= _ALWAYS:
        raise TwinServeError(f"{path}: not the summary of a run, which has at least {', '.join(sorted(_ALWAYS))}")
    return summary


def read_requests(folder: Path, columns: list[str]) -> pd.DataFrame:
    """Some columns of the requests table in a result folder; raises TwinServeError where it cannot be read."""
    return read_table(folder / REQUESTS, columns)


def read_table(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """A table, or some columns of it; raises TwinServeError where it cannot be read."""
    if not path.is_file():
        raise TwinServeError(f"{path}: missing from the result folder")
    try:
        return pd.read_parquet(path, columns=columns)
    except (OSError, ValueError) as error:
        raise TwinServeError(f"{path}: not readable as Parquet ({_first_line(error)})") from error


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path` and rename it there: readers see all of it or the file before.

    The temporary name keeps the suffix, from which writers such as matplotlib's take the format.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def environment() -> dict[str, Any]:
    """Versions, git revision and hardware of this process; None for what cannot be found out."""
    revision, dirty = _git_state(Path(__file__).resolve().parents[2])
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "git_revision": revision,
        "git_dirty": dirty,
        "cpu_model": cpu_model(),
        "cpu_cores": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "transparent_hugepage": _transparent_hugepage(),
    }


def command_line() -> str:
    """The command of this process, without what names places on this machine."""
    arguments = [each for each in sys.argv[1:] if not each.startswith(("profile.out=", "hydra."))]
    return shlex.join(["python", "run.py", *arguments])


def _gap_table(gaps: Gaps) -> pd.DataFrame:
    """Equal values merged: simulated gaps repeat a lot."""
    values, position = np.unique(gaps.values, return_inverse=True)
    weights = np.zeros(len(values), dtype=np.int64)
    np.add.at(weights, position, gaps.weights)
    return pd.DataFrame({"value_s": values, "weight": weights})


def _write_table(path: Path, table: pd.DataFrame) -> None:
    write_whole(path, lambda temporary: table.to_parquet(temporary, index=False))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _transparent_hugepage() -> str | None:
    """Who gets huge pages on Linux: always, madvise (who asks) or never."""
    try:
        choices = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="utf-8")
    except OSError:
        return None
    return choices.partition("[")[2].partition("]")[0] or None


def _git_state(root: Path) -> tuple[str | None, bool | None]:
    """Revision and whether files differ from it. Only of a repository at `root`: an installed copy of this package
    may lie inside somebody else's."""
    if not (root / ".git").exists():
        return None, None
    try:
        revision = _git(root, "rev-parse", "HEAD")
        return revision, bool(_git(root, "--no-optional-locks", "status", "--porcelain"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()


def slug(name: str) -> str:
    """In lower case, with what is neither letter, digit nor dot as single hyphens, and without trademark signs."""
    return re.sub(r"[^a-z0-9.]+", "-", re.sub(r"\((r|tm)\)", "", name.lower())).strip("-")


def cpu_model() -> str | None:
    """Name of the processor. Linux has the name in /proc/cpuinfo; elsewhere the platform module may know one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None) or platform.processor() or None


def cpu_with_threads(name: str | None, num_threads: int) -> str:
    """The device of a run on a CPU."""
    return f"{name or 'CPU'}, {num_threads} thread" + ("" if num_threads == 1 else "s")


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
