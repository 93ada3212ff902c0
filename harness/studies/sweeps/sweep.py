"""Sweeps: jobs already done are skipped, a failing job does not stop the others, and one table compares them all."""

import copy
import io
import json
import multiprocessing
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from harness import interrupts
from harness.config import RunConfig, parse
from harness.config.schema.sinks import SinksConfig
from harness.config.schema.tasks.plotting import AS_USUAL, PlotConfig, ReportConfig
from harness.errors import USER_ERROR, ConfigError, TwinServeError
from harness.results.stored.files import FAILED, SUMMARY, read_summary, write_whole
from harness.results.stored.lock import FolderInUseError, locked
from harness.sinks.sending import check_sinks, send_sweep
from harness.studies.comparison.folders import capacity_folders, expand_results, job_folders
from harness.studies.report_page import write_report_page
from harness.studies.sweeps import naming
from harness.studies.sweeps.finished import failures, is_finished
from harness.studies.sweeps.job_lines import JobLine, headline, result_text, shown, tell

SOME_JOB_FAILED = 1
_UNTIL_THE_JOBS_ENDED = ExitStack()
_UNTIL_THE_END_OF_LINES = ExitStack()
Execute = Callable[..., object]  # of a configuration and a folder, and perhaps what to do in place of its task
Parsed = Callable[[], RunConfig]
Executed = Callable[[RunConfig, Path], str]  # what it printed


def run_job(cfg: DictConfig, folder: Path, execute: Execute) -> None:
    """Runs one job of a sweep through `execute` unless `folder` holds its complete result.

    Any exception ends in the job's `failed.json` (`error`: one line, `traceback`) and one line on stderr. In a worker
    process of the sweep an interrupt ends the job and leaves later ones out; the parent process reports it.
    """
    if multiprocessing.parent_process() is None:
        _UNTIL_THE_JOBS_ENDED.close()  # joblib runs jobs here where it may use one process only
        _run_job(cfg, folder, execute)
        return
    received = interrupts.received_in_worker()
    try:
        with interrupts.raised():
            if not received:
                _run_job(cfg, folder, execute)
    except KeyboardInterrupt:
        received.append(signal.SIGTERM)


def _run_job(cfg: DictConfig, folder: Path, execute: Execute) -> None:
    if cfg.get("task") == "capacity" and _launcher(HydraConfig.get()) == "basic":
        from harness.studies.sweeps import searches  # imported late, as most sweeps do without it

        if (config := searches.taken(cfg)) is not None:
            searches.add(config, execute, partial(_run_locked, lambda: config, folder))
            return
    _run_locked(partial(parse, cfg), folder, partial(_executed, execute))


def _run_locked(parsed: Parsed, folder: Path, executed: Executed) -> None:
    try:
        with locked(folder):
            tell(_run_in(parsed, folder, executed))
    except FolderInUseError as error:  # nothing may be written to the folder
        tell(JobLine(folder.name, "failed", str(error)))
        raise SystemExit(SOME_JOB_FAILED) from None


def _run_in(parsed: Parsed, folder: Path, executed: Executed) -> JobLine:
    failure = folder / FAILED
    started = time.monotonic()
    try:
        config = parsed()
        if is_finished(config, folder):
            failure.unlink(missing_ok=True)
            return JobLine(folder.name, "skipped", result_text(read_summary(folder)))
        output = executed(config, folder)
        text = headline(folder)
    except Exception as error:
        message = _describe(error)
        document = json.dumps({"error": message, "traceback": traceback.format_exc()}, indent=2)
        write_whole(failure, lambda path: path.write_text(document, encoding="utf-8"))
        return JobLine(folder.name, "failed", message)
    failure.unlink(missing_ok=True)
    return JobLine(folder.name, "done", text, time.monotonic() - started, output)


def _executed(execute: Execute, config: RunConfig, folder: Path) -> str:
    """Runs the job; returns what it printed, empty where that was shown at once or is not asked for."""
    in_parallel = _launcher(HydraConfig.get()) != "basic"
    if config.verbose and not in_parallel:
        print(f"\n{folder.name}", flush=True)
        execute(config, folder)
        return ""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        execute(config.model_copy(update={"progress": False}), folder)
    return printed.getvalue() if config.verbose else ""


def _launcher(hydra: Any) -> str:
    return str(hydra.runtime.choices["hydra/launcher"])


def report(
    results: Sequence[str], out_folder: Path, plot: PlotConfig = AS_USUAL, baseline: str | int | None = None
) -> None:
    """Compares the folders of runs and sweeps that `results` names.

    Raises:
        TwinServeError: a folder holds no result, or one that is damaged or failed. It is left out of the comparison.
    """
    alone = Path(results[0]) if len(results) == 1 else None
    if alone is not None and not (alone / SUMMARY).exists() and write_report_page(alone, out_folder):
        return  # a search or public closed loops: no runs to compare
    if left_out := write_report(expand_results(results), out_folder, plot, baseline):
        raise TwinServeError(f"left out of the comparison, for the reasons above: {', '.join(left_out)}")
    if alone is not None:
        write_report_page(alone, out_folder)  # in place of the page of a comparison with nothing


def write_report(
    folders: Sequence[Path], out_folder: Path, plot: PlotConfig = AS_USUAL, baseline: str | int | None = None
) -> list[str]:
    """Compares the results in `folders` and names what was written to `out_folder`; returns the runs left out."""
    from harness.studies.comparison.comparison import write_comparison  # imported late, as a run does without it

    written = write_comparison(folders, out_folder, plot, baseline)
    names = ", ".join(path.name for path in written.paths)
    print(f"comparison: {out_folder}", *textwrap.wrap(names, 78, initial_indent="  ", subsequent_indent="  "), sep="\n")
    return written.left_out


def _report_sweep(
    sweep_dir: Path, plot: PlotConfig = AS_USUAL, baseline: str | int | None = None, *, is_over: bool = True
) -> None:
    """Compares what the jobs left, if they left anything: their capacities where they searched for them, or else their
    runs. The best capacity is confirmed only where the sweep is over."""
    if capacities := capacity_folders(sweep_dir):
        from harness.studies.capacity.capacity_sweep import write_capacities  # imported late, as a run does without it

        write_capacities(capacities, sweep_dir, confirms=is_over)
        write_report_page(sweep_dir, sweep_dir)
    elif folders := job_folders(sweep_dir):
        write_report(folders, sweep_dir, plot, baseline)


def report_interrupted() -> None:
    """After an interrupt: compares what the jobs of a sweep left, and says how to go on with it."""
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return
    if (searches := sys.modules.get("harness.studies.sweeps.searches")) is not None:
        with suppress(KeyboardInterrupt):
            searches.end(interrupted=True)
    _UNTIL_THE_END_OF_LINES.close()
    sweep_dir = Path(HydraConfig.get().sweep.dir)
    _report_sweep(sweep_dir, is_over=False)
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
        _name_jobs(config)
        _check_sinks(config)
        if _launcher(config.hydra) == "joblib":
            _UNTIL_THE_JOBS_ENDED.enter_context(interrupts.Forwarded())
        self._earlier_failures = failures(Path(config.hydra.sweep.dir))
        HydraConfig.instance().set_config(copy.deepcopy(config))
        _show_jobs(config)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Writes the comparison.

        Raises:
            SystemExit: with code 1, when a job or the comparison failed.
            KeyboardInterrupt: the jobs were interrupted.
        """
        _UNTIL_THE_JOBS_ENDED.close()
        if (searches := sys.modules.get("harness.studies.sweeps.searches")) is not None:
            searches.end()
        _UNTIL_THE_END_OF_LINES.close()
        sweep_dir = Path(config.hydra.sweep.dir)
        failed = sorted(path for path, time in failures(sweep_dir).items() if self._earlier_failures.get(path) != time)
        try:
            _report_sweep(sweep_dir, *_drawn_as(config))
        except Exception as error:  # Hydra would turn it into a warning and the exit code into 0
            print(f"error: no comparison: {_describe(error)}", file=sys.stderr, flush=True)
            raise SystemExit(SOME_JOB_FAILED) from None
        _send(config, sweep_dir)
        if failed:
            jobs = "1 job" if len(failed) == 1 else f"{len(failed)} jobs"
            print(f"{jobs} failed: {', '.join(map(str, failed))}", file=sys.stderr, flush=True)
            raise SystemExit(SOME_JOB_FAILED)


def _send(config: DictConfig, sweep_dir: Path) -> None:
    """Sends the jobs to the tools of `sinks`; an interrupted sweep sends them at the end of its resumption."""
    try:
        if (sinks := _sinks_of(config)).names:
            send_sweep(sinks, sweep_dir, job_folders(sweep_dir))
    except (TwinServeError, OSError) as error:  # Hydra would turn it into a warning and the exit code into 0
        print(f"error: {_describe(error)}", file=sys.stderr, flush=True)
        raise SystemExit(SOME_JOB_FAILED) from None


def _check_sinks(config: DictConfig) -> None:
    try:
        check_sinks(_sinks_of(config))
    except TwinServeError as error:  # Hydra would turn it into a warning
        raise SystemExit(USER_ERROR) from error


def _sinks_of(config: DictConfig) -> SinksConfig:
    """The sinks that the configuration of a sweep names; none where it is wrong, which each job reports itself."""
    try:
        values = OmegaConf.to_container(OmegaConf.masked_copy(config, ["sinks"]), resolve=True)
        return SinksConfig.model_validate(values["sinks"] if isinstance(values, dict) else {})
    except (OmegaConfBaseException, ValidationError, KeyError):
        return SinksConfig()


def _name_jobs(config: DictConfig) -> None:
    """Names the folders of the jobs by what the sweep varies, so that each has its own."""
    try:
        naming.check_jobs(config)
        naming.name_by_what_varies(config, Path(config.hydra.sweep.dir))
    except (TwinServeError, OSError, HydraException) as error:  # Hydra would turn it into a warning
        raise SystemExit(USER_ERROR) from error


def _show_jobs(config: DictConfig) -> None:
    """Shows a line for each job that ends, until the sweep does."""
    overrides = naming.overrides_of(config)
    left_out = config.hydra.job.config.override_dirname.exclude_keys
    total = naming.number_of_jobs(overrides) if config.hydra.runtime.choices["hydra/sweeper"] == "basic" else None
    lines = shown(total, naming.width_of_names(overrides, left_out), with_bar=not config.get("verbose"))
    _UNTIL_THE_END_OF_LINES.enter_context(lines)
    interrupts.UNTIL_THE_END.callback(_UNTIL_THE_END_OF_LINES.close)


def _drawn_as(config: DictConfig) -> tuple[PlotConfig, str | int | None]:
    """How the comparison of a sweep is drawn, and its baseline, as far as the configuration says so."""
    values = OmegaConf.to_container(OmegaConf.masked_copy(config, ["plot", "report"]), resolve=True)
    assert isinstance(values, dict)
    plot, report = PlotConfig.model_validate(values.get("plot", {})), values.get("report", {})
    return plot, ReportConfig.model_validate(report).baseline


def _hold(config: DictConfig, key: str) -> None:
    """Locks the folder that `key` of Hydra's own configuration names."""
    try:
        name = OmegaConf.select(config.hydra, key)
        if not name or "\0" in name:
            raise ConfigError(f"hydra.{key}={name!r}: must be the name of a folder")
        interrupts.UNTIL_THE_END.enter_context(locked(Path(name)))
    except (TwinServeError, OSError, OmegaConfBaseException) as error:  # Hydra would turn it into a warning
        raise SystemExit(USER_ERROR) from error


def _describe(error: Exception) -> str:
    """One line; unexpected exceptions with their type."""
    text = " ".join(str(error).split())
    return text if isinstance(error, TwinServeError) else f"{type(error).__name__}: {text}"
