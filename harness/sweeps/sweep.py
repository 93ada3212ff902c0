"""Sweeps: jobs already done are skipped, a failing job does not stop the others, and one table compares them all."""

import copy
import hashlib
import json
import multiprocessing
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness import interrupts
from harness.config import RunConfig, load, parse
from harness.errors import ConfigError, TwinServeError
from harness.results.files import FAILED, SUMMARY, read_summary, write_whole
from harness.results.inputs import input_digests, read_inputs
from harness.results.lock import FolderInUseError, locked
from harness.workload.trace import file_stamp

SOME_JOB_FAILED = 1
USER_ERROR = 2
# What callbacks of Hydra open; they go to worker processes as copies and so cannot hold it.
UNTIL_THE_END = ExitStack()
_UNTIL_THE_JOBS_ENDED = ExitStack()
Execute = Callable[[RunConfig, Path], None]
_MAX_FOLDER_NAME = 120  # well under the 255 bytes of common file systems, and still readable


def job_folder(overrides: str) -> str:
    """Folder name of a job: its overrides (`key=value,key=value`), shortened and with a hash where they make no name.

    It depends on nothing but the overrides, so a sweep that is extended finds the folders of its finished jobs.
    """
    name = re.sub(r"[^\w.,=+\-\[\]]", "_", overrides, flags=re.ASCII)[:_MAX_FOLDER_NAME]
    if name != overrides:
        name = f"{name}-{hashlib.sha256(overrides.encode()).hexdigest()[:8]}"
    return name or "defaults"


# At import, because worker processes of a launcher import this module and nothing calls into it before Hydra does.
OmegaConf.register_new_resolver("job_folder", job_folder, replace=True)


def run_job(cfg: DictConfig, folder: Path, execute: Execute) -> None:
    """Runs one job of a sweep through `execute` unless `folder` holds its complete result.

    Any exception ends in the job's `failed.json` (`error`: one line, `traceback`) and one line on stderr. In a worker
    process of the sweep an interrupt ends the job and leaves later ones out; the parent process reports it.
    """
    name = f"job {HydraConfig.get().job.num} ({', '.join(HydraConfig.get().overrides.task) or 'defaults'})"
    if multiprocessing.parent_process() is None:
        _UNTIL_THE_JOBS_ENDED.close()  # joblib runs jobs here where it may use one process only
        _run_job(name, cfg, folder, execute)
        return
    received = interrupts.received_in_worker()
    try:
        with interrupts.raised():
            if not received:
                _run_job(name, cfg, folder, execute)
    except KeyboardInterrupt:
        received.append(signal.SIGTERM)


def _run_job(name: str, cfg: DictConfig, folder: Path, execute: Execute) -> None:
    try:
        with locked(folder):
            _run_in(name, cfg, folder, execute)
    except FolderInUseError as error:  # nothing may be written to the folder
        print(f"{name}: failed: {error}", file=sys.stderr, flush=True)
        raise SystemExit(SOME_JOB_FAILED) from None


def _run_in(name: str, cfg: DictConfig, folder: Path, execute: Execute) -> None:
    failure = folder / FAILED
    try:
        config = parse(cfg)
        if is_finished(config, folder):
            print(f"{name}: complete in {folder}, skipped", flush=True)
        else:
            print(f"{name}: {folder}", flush=True)
            in_parallel = _launcher(HydraConfig.get()) != "basic"
            execute(config.model_copy(update={"progress": False}) if in_parallel else config, folder)
    except Exception as error:
        message = _describe(error)
        text = json.dumps({"error": message, "traceback": traceback.format_exc()}, indent=2)
        write_whole(failure, lambda path: path.write_text(text, encoding="utf-8"))
        print(f"{name}: failed: {message}", file=sys.stderr, flush=True)
    else:
        failure.unlink(missing_ok=True)


def _launcher(hydra: Any) -> str:
    return str(hydra.runtime.choices["hydra/launcher"])


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds the result of a run that was neither cut short nor repeated with an error."""
    try:
        return read_summary(folder)["complete"] is True and not (folder / FAILED).exists()
    except TwinServeError:
        return False


def is_finished(config: RunConfig, folder: Path) -> bool:
    """Whether `folder` holds the complete result of this very configuration, of which the progress bar is not part,
    with the contents of all input files unchanged; and that of a run, with the file of its trace not written again."""
    if not is_complete(folder) or read_inputs(folder) != input_digests(config):
        return False
    stamp = file_stamp(getattr(config.trace, "path", None))
    if config.task == "run" and read_summary(folder).get("trace_file") != stamp:
        return False
    try:
        earlier = load(folder / "config.yaml")
    except ConfigError:
        return False
    return earlier.model_copy(update={"progress": config.progress}) == config


def job_folders(folder: Path) -> list[Path]:
    """Folders at or below `folder` that hold a result or the record of a failure; by name, numbers in it by value."""
    folders = {path.parent for name in (SUMMARY, FAILED) for path in folder.rglob(name)}
    return sorted(folders, key=lambda path: [part.zfill(20) for part in re.split(r"(\d+)", str(path))])


def report(results: Sequence[str], out_folder: Path) -> None:
    """Compares the folders of runs and sweeps that `results` names.

    Raises:
        TwinServeError: a folder holds no result, or one that is damaged or failed. It is left out of the comparison.
    """
    if len(results) == 1 and write_report_page(Path(results[0]), out_folder):
        if not (Path(results[0]) / SUMMARY).exists():
            return  # a search or many closed loops: no runs to compare
    left_out = write_report(expand_results(results), out_folder)
    if left_out:
        raise TwinServeError(f"left out of the comparison, for the reasons above: {', '.join(left_out)}")


def write_report_page(folder: Path, out_folder: Path) -> bool:
    """Writes report.html on the result of one task in `folder` to `out_folder`; returns whether there is one."""
    from harness.report import write_page  # imported late, as other tasks do without it

    path = write_page(folder, out_folder)
    if path is not None:
        print(f"report: {path}", flush=True)
    return path is not None


def expand_results(results: Iterable[str]) -> list[Path]:
    """The result folders meant by `results`: the folder of a run stands for itself, that of a sweep for its jobs.

    A folder that is named twice is there once. One without a result stands for itself.

    Raises:
        ConfigError: none of them holds a result.
    """
    folders: dict[Path, Path] = {}
    problems, num_found = [], 0
    for name in results:
        folder = Path(name)
        found = [folder] if (folder / SUMMARY).exists() else job_folders(folder)
        num_found += len(found)
        if not folder.is_dir():
            problems.append(f"results: {name} is not a folder; give folders of earlier runs or sweeps")
        elif not found:
            problems.append(f"results: {name} holds no result (no {SUMMARY} in it or below it)")
        for each in found or [folder]:
            folders.setdefault(each.resolve(), each)
    if problems and not num_found:
        raise ConfigError(problems[0])
    return list(folders.values())


def write_report(folders: Sequence[Path], out_folder: Path) -> list[str]:
    """Compares the results in `folders` and names what was written to `out_folder`; returns the runs left out."""
    from harness.sweeps.comparison import write_comparison  # imported late, as a run does without it

    written = write_comparison(folders, out_folder)
    print(f"comparison in {out_folder}: {', '.join(path.name for path in written.paths)}", flush=True)
    return written.left_out


def report_interrupted() -> None:
    """After an interrupt: compares what the jobs of a sweep left, and says how to go on with it."""
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return
    sweep_dir = Path(HydraConfig.get().sweep.dir)
    folders = job_folders(sweep_dir)
    if folders:
        write_report(folders, sweep_dir)
    print(f"to go on, repeat the command with hydra.sweep.dir={sweep_dir}", file=sys.stderr, flush=True)


class SweepReport(Callback):
    """Hydra callback that ends a sweep with one comparison of its jobs, and with exit code 1 if any failed."""

    def __init__(self) -> None:
        self._earlier_failures: dict[Path, int] = {}

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Takes the folder of a single run, before Hydra writes to it.

        Raises:
            SystemExit: the folder cannot be used, which is its cause.
        """
        _hold(config, "run.dir")

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Notes the failures that earlier sweeps left, and makes the folder known should this one be interrupted.

        Raises:
            SystemExit: the sweep's folder cannot be used, which is its cause.
        """
        _hold(config, "sweep.dir")
        if _launcher(config.hydra) == "joblib":
            _UNTIL_THE_JOBS_ENDED.enter_context(interrupts.forwarded())
        self._earlier_failures = _failures(Path(config.hydra.sweep.dir))
        HydraConfig.instance().set_config(copy.deepcopy(config))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Writes the comparison.

        Raises:
            SystemExit: with code 1, when a job or the comparison failed.
            KeyboardInterrupt: the jobs were interrupted.
        """
        _UNTIL_THE_JOBS_ENDED.close()
        sweep_dir = Path(config.hydra.sweep.dir)
        failed = sorted(path for path, time in _failures(sweep_dir).items() if self._earlier_failures.get(path) != time)
        folders = job_folders(sweep_dir)
        try:
            if folders:
                write_report(folders, sweep_dir)
        except Exception as error:  # Hydra would turn it into a warning and the exit code into 0
            print(f"error: no comparison: {_describe(error)}", file=sys.stderr, flush=True)
            raise SystemExit(SOME_JOB_FAILED) from None
        if failed:
            jobs = "1 job" if len(failed) == 1 else f"{len(failed)} jobs"
            print(f"{jobs} failed: {', '.join(map(str, failed))}", file=sys.stderr, flush=True)
            raise SystemExit(SOME_JOB_FAILED)


def _hold(config: DictConfig, key: str) -> None:
    """Locks the folder that `key` of Hydra's own configuration names."""
    try:
        name = OmegaConf.select(config.hydra, key)
        if not name or "\0" in name:
            raise ConfigError(f"hydra.{key}={name!r}: must be the name of a folder")
        UNTIL_THE_END.enter_context(locked(Path(name)))
    except (TwinServeError, OSError, OmegaConfBaseException) as error:  # Hydra would turn it into a warning
        raise SystemExit(USER_ERROR) from error


def _failures(folder: Path) -> dict[Path, int]:
    """The failed.json files below `folder` with the time each was written, in ns."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob(FAILED)}


def _describe(error: Exception) -> str:
    """One line; unexpected exceptions with their type."""
    text = " ".join(str(error).split())
    return text if isinstance(error, TwinServeError) else f"{type(error).__name__}: {text}"
