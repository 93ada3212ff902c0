"""What the command line does of a configuration that Hydra composed."""

from __future__ import annotations

import gc
import importlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.documents import user_path
from harness import interrupts
from harness.config import RunConfig, parse, to_yaml
from harness.config.checked import of_values
from harness.config.composing import known_commands
from harness.engines.availability import check_engine, check_package
from harness.errors import USER_ERROR, ConfigError, TwinServeError
from harness.results.stored.files import (
    CALIBRATION,
    CAPACITY,
    ERRORS,
    INPUTS,
    REPORT,
    SENT,
    SPANS,
    SUMMARY,
    VALIDATED,
    VALIDATION,
    write_whole,
)
from harness.results.stored.inputs import input_digests
from harness.results.stored.lock import locked
from harness.results.stored.perfetto import TRACE
from harness.sinks.sending import sent_after
from harness.studies.report_page import write_report_page

if TYPE_CHECKING:
    from omegaconf import DictConfig

Task = Callable[[RunConfig, Path], object]
# The package that only this task needs, and the extra that installs it.
_EXTRAS = {
    "calibrate": ("scipy", "calibrate"),
    "observe": ("scipy", "calibrate"),
    "profile": ("scipy", "engine"),
    "search": ("optuna", "search"),
}


def run_job(cfg: DictConfig) -> None:
    """Runs one composed job in its output folder; in a sweep, without letting its failure stop the other jobs.

    Raises:
        SystemExit: the user's error is its cause. Hydra lets it through, where it would print a line of its own and a
            list of overrides for any other exception.
    """
    from hydra.core.hydra_config import HydraConfig  # imported late, as a run whose command is known does without it
    from hydra.types import RunMode

    if interrupts.was_raised():  # and lost on the way here
        raise KeyboardInterrupt
    settings = HydraConfig.get()
    folder = Path(settings.runtime.output_dir)
    if settings.mode == RunMode.MULTIRUN:
        from harness.studies.sweeps import sweep

        sweep.run_job(cfg, folder, execute)
        return
    try:
        config = parse(cfg)
        if config.task == "run":
            _keep_command()
        _run(config, folder)
    except (TwinServeError, OSError) as error:
        raise SystemExit(USER_ERROR) from error


def run_known(command: known_commands.KnownCommand) -> None:
    """Does what Hydra and `run_job` do of a command line whose configuration is known.

    Raises:
        TwinServeError, OSError: as `execute`; or the output folder is in use.
    """
    interrupts.UNTIL_THE_END.enter_context(locked(Path(command.folder)))
    folder = Path(os.path.abspath(command.folder))
    command.store(folder / ".hydra")
    _run(of_values(command.values), folder)


def _run(config: RunConfig, folder: Path) -> None:
    with sent_after(config.sinks, folder):
        execute(config, folder)
        if config.plots and config.task != "report":
            write_report_page(folder, folder)


def _keep_command() -> None:
    """Lets later processes know what Hydra made of this command line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from harness.config.composing.composer import plain_forms

    settings = _settings()
    given = [*settings.overrides.hydra, *settings.overrides.task]
    with suppress(HydraException, OmegaConfBaseException, ConfigError):  # of choices that are nothing without values
        known_commands.keep([each for each in given if each != "hydra.mode=RUN"], plain_forms)


def execute(config: RunConfig, folder: Path, task: Task | None = None) -> None:
    """Runs `task`, by default `config.task`, and leaves the resolved configuration and the results in `folder`.

    Raises:
        TwinServeError: the configuration, the trace or an input folder cannot be used, or memory does not suffice.
        OSError: the output cannot be written.
    """
    try:
        _execute(config, folder, task)
    except MemoryError as error:
        text = f"out of memory, no result was written{': ' if str(error) else ''}{error}"
        raise TwinServeError(f"task={config.task}: {text}") from error


def _execute(config: RunConfig, folder: Path, task: Task | None) -> None:
    check_engine(config.engine.kind)
    _check_output(config, folder)
    if config.task == "report":
        from harness.studies.sweeps import sweep  # imported late, as it brings Hydra

        sweep.report(config.results, folder, config.plot, config.report.baseline)
        return
    if config.task == "plot":
        importlib.import_module("harness.studies.comparison.drawing").draw(config, folder)
        return
    inputs = json.dumps(input_digests(config), indent=2)
    write_whole(folder / "config.yaml", lambda path: _start_anew(config, folder, path))
    write_whole(folder / INPUTS, lambda path: path.write_text(inputs, encoding="utf-8"))
    with interrupts.held():
        task = task or _task(config)
    if not gc.isenabled():
        gc.freeze()  # what a start has made stays
        gc.enable()
    task(config, folder)


def _start_anew(config: RunConfig, folder: Path, path: Path) -> None:
    """Write the configuration to `path`. Results of an earlier run in `folder` do not belong to it and are removed."""
    path.write_text(to_yaml(config), encoding="utf-8")
    for stale in (SUMMARY, VALIDATION, *VALIDATED, ERRORS, CALIBRATION, TRACE, CAPACITY, REPORT, SPANS, SENT):
        (folder / stale).unlink(missing_ok=True)


def _check_output(config: RunConfig, folder: Path) -> None:
    """Refuses an output folder that the task reads."""
    settings = config.validation
    measured = [settings.measured, *settings.repeats]
    for name in (name.partition(":")[2] for name in measured if name):
        if os.path.realpath(user_path(name)) == os.path.realpath(folder):
            raise ConfigError(f"hydra.run.dir={name}: task={config.task} reads this folder; write to another one")


def _task(config: RunConfig) -> Task:
    """The function of the task; imported late, so that --help and errors are fast."""
    if config.task in _EXTRAS:
        check_package(f"task={config.task}", *_EXTRAS[config.task])
    if config.task == "import":
        return importlib.import_module("harness.studies.profile_import").import_profile
    if config.task == "profile":
        return importlib.import_module("harness.studies.machine_profiling").profile
    if config.task == "validate":
        return importlib.import_module("harness.validation.validate").validate
    if config.task == "calibrate":
        return importlib.import_module("harness.calibration.calibrate").calibrate
    if config.task == "observe":
        return partial(importlib.import_module("harness.calibration.observe").observe, given=_given())
    if config.task == "capacity":
        from hydra.types import RunMode

        is_job = getattr(_settings(), "mode", None) == RunMode.MULTIRUN
        find = importlib.import_module("harness.terminal").capacity
        return partial(find, given=_given(), confirms=not is_job)  # the end of a sweep confirms the best only
    if config.task == "search":
        return importlib.import_module("harness.studies.search.explore").explore
    if config.task == "serve":
        return importlib.import_module("harness.terminal").serve
    return importlib.import_module("harness.terminal").run


def _given() -> list[str]:
    """The overrides of the job."""
    settings = _settings()
    return [] if settings is None else list(settings.overrides.task)


def _settings() -> Any:
    """Hydra's own configuration; None where Hydra composed nothing."""
    from hydra.core.hydra_config import HydraConfig

    return HydraConfig.get() if HydraConfig.initialized() else None
