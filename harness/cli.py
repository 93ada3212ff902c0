"""The command line: runs what Hydra composed, and ends every error of the user's with one line and exit code 2."""

import importlib
import importlib.util
import json
import logging
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from engine.documents import user_path
from harness import interrupts
from harness.config import RunConfig, parse, to_yaml
from harness.config.command_lines import vllm_import
from harness.config.composing import help_text
from harness.config.composing.conf_tree import CONF
from harness.config.composing.overrides import explain_refusal, is_refusal
from harness.engines.availability import check_engine
from harness.errors import ConfigError, TwinServeError
from harness.results.stored.files import (
    CALIBRATION,
    CAPACITY,
    ERRORS,
    INPUTS,
    REPORT,
    SUMMARY,
    VALIDATED,
    VALIDATION,
    write_whole,
)
from harness.results.stored.inputs import input_digests
from harness.results.stored.perfetto import TRACE
from harness.streams import tolerant
from harness.studies.sweeps import sweep
from harness.studies.sweeps.sweep import USER_ERROR, write_report_page

_VERBOSE = frozenset({"-v", "--verbose", "verbose=true"})
# The flags of Hydra 1.3, without and with a value. --experimental-rerun is refused: it unpickles a file of a folder of
# results, which may be of another person, and so would run the code in it.
_SWITCHES: tuple[tuple[str, ...], ...] = (
    ("--help", "-h"), ("--hydra-help",), ("--version",), ("--resolve",), ("--run", "-r"), ("--multirun", "-m"),
    ("--shell-completion", "-sc"),
)  # fmt: skip
_VALUED: dict[tuple[str, ...], tuple[str, ...] | None] = {
    ("--cfg", "-c"): ("job", "hydra", "all"), ("--package", "-p"): None, ("--config-path", "-cp"): None,
    ("--config-name", "-cn"): None, ("--config-dir", "-cd"): None,
}  # fmt: skip
_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def main() -> int:
    """The console command `twinserve`, and what run.py does: runs the command line, and returns the exit code."""
    if not _VERBOSE.intersection(sys.argv):
        logging.getLogger("harness").setLevel(logging.ERROR)  # what is noted of a trace is in the summary, too
    with tolerant():
        return launch(hydra.main(version_base=None, config_path=str(CONF), config_name="config")(run_job))


def launch(main: Callable[[], None]) -> int:
    """Runs the Hydra entry point `main` and returns the process's exit code.

    Errors a user can cause become one line on stderr. With HYDRA_FULL_ERROR=1 in the environment, and for errors that
    are defects of this program, the exception is raised instead.
    """
    before = os.environ.get("HYDRA_FULL_ERROR", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them in its own way
    try:
        with sweep.UNTIL_THE_END:
            return _run(main, show_traceback=before == "1")
    finally:
        os.environ["HYDRA_FULL_ERROR"] = before


def _run(main: Callable[[], None], *, show_traceback: bool) -> int:
    try:
        _check_working_directory()
        with interrupts.raised():
            sys.argv[1:] = [
                "verbose=true" if argument in ("-v", "--verbose") else argument for argument in sys.argv[1:]
            ]
            flags = _flags()
            if flags.help:
                _print_help(flags)
            else:
                _import_vllm(flags)
                _take_recorded()
                main()
        return 0
    except KeyboardInterrupt:
        return _end_interrupted()
    except SystemExit as stop:
        if not isinstance(stop.__cause__, Exception):
            raise
        error = stop.__cause__
    except Exception as caught:
        if interrupts.was_raised():  # code that cleans up after it, such as Hydra's, may raise something else
            return _end_interrupted()
        if not isinstance(caught, TwinServeError | OSError) and not is_refusal(caught):
            raise
        error = caught
    if show_traceback:
        raise error
    print(f"error: {explain(error)}", file=sys.stderr)
    return USER_ERROR


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except OSError:
        raise ConfigError("the working directory does not exist any more; change to one that does") from None


def _end_interrupted() -> int:
    with interrupts.noted():
        sweep.report_interrupted()
    print("interrupted", file=sys.stderr)
    return interrupts.INTERRUPTED


def run_job(cfg: DictConfig) -> None:
    """Runs one composed job in its output folder; in a sweep, without letting its failure stop the other jobs.

    Raises:
        SystemExit: the user's error is its cause. Hydra lets it through, where it would print a line of its own and a
            list of overrides for any other exception.
    """
    if interrupts.was_raised():  # and lost on the way here
        raise KeyboardInterrupt
    settings = HydraConfig.get()
    folder = Path(settings.runtime.output_dir)
    if settings.mode == RunMode.MULTIRUN:
        sweep.run_job(cfg, folder, execute)
        return
    try:
        config = parse(cfg)
        execute(config, folder)
        if config.plots and config.task != "report":
            write_report_page(folder, folder)
    except (TwinServeError, OSError) as error:
        raise SystemExit(USER_ERROR) from error


def execute(config: RunConfig, folder: Path) -> None:
    """Runs `config.task` and leaves the resolved configuration and the results in `folder`.

    Raises:
        TwinServeError: the configuration, the trace or an input folder cannot be used, or memory does not suffice.
        OSError: the output cannot be written.
    """
    try:
        _execute(config, folder)
    except MemoryError as error:
        text = f"out of memory, no result was written{': ' if str(error) else ''}{error}"
        raise TwinServeError(f"task={config.task}: {text}") from error


def _execute(config: RunConfig, folder: Path) -> None:
    check_engine(config.engine.kind)
    _check_output(config, folder)
    if config.task == "report":
        sweep.report(config.results, folder, config.plot, config.report.baseline)
        return
    if config.task == "plot":
        importlib.import_module("harness.studies.comparison.drawing").draw(config, folder)
        return
    inputs = json.dumps(input_digests(config), indent=2)
    write_whole(folder / "config.yaml", lambda path: _start_anew(config, folder, path))
    write_whole(folder / INPUTS, lambda path: path.write_text(inputs, encoding="utf-8"))
    with interrupts.held():
        task = _task(config)
    task(config, folder)


def _start_anew(config: RunConfig, folder: Path, path: Path) -> None:
    """Write the configuration to `path`. Results of an earlier run in `folder` do not belong to it and are removed."""
    path.write_text(to_yaml(config), encoding="utf-8")
    for stale in (SUMMARY, VALIDATION, *VALIDATED, ERRORS, CALIBRATION, TRACE, CAPACITY, REPORT):
        (folder / stale).unlink(missing_ok=True)


def _check_output(config: RunConfig, folder: Path) -> None:
    """Refuses an output folder that the task reads."""
    settings = config.validation
    measured = [settings.measured, *settings.repeats]
    for name in (name.partition(":")[2] for name in measured if name):
        if user_path(name).resolve() == folder.resolve():
            raise ConfigError(f"hydra.run.dir={name}: task={config.task} reads this folder; write to another one")


def _task(config: RunConfig) -> Callable[[RunConfig, Path], object]:
    """The function of the task; imported late, so that --help and errors are fast."""
    if config.task == "import":
        return importlib.import_module("harness.studies.profile_import").import_profile
    if config.task == "profile":
        return importlib.import_module("harness.studies.machine_profiling").profile
    if config.task == "validate":
        return importlib.import_module("harness.validation.validate").validate
    if config.task == "calibrate":
        return importlib.import_module("harness.calibration.calibrate").calibrate
    if config.task == "observe":
        return importlib.import_module("harness.calibration.observe").observe
    if config.task == "capacity":
        is_job = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
        given = list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []
        find = importlib.import_module("harness.terminal").capacity
        return partial(find, given=given, confirms=not is_job)  # the end of a sweep confirms the best only
    if config.task == "search":
        if importlib.util.find_spec("optuna") is None:
            raise ConfigError("task=search: optuna is not installed (pip install -e '.[search]')")
        return importlib.import_module("harness.studies.search.explore").explore
    if config.task == "serve":
        return importlib.import_module("harness.terminal").serve
    return importlib.import_module("harness.terminal").run


def explain(error: Exception) -> str:
    """One line for an error of the user's, with the nearest valid name where a name is wrong."""
    if isinstance(error, TwinServeError | OSError) and not isinstance(error, HydraException):
        return " ".join((str(error) or str(error.__cause__)).split())
    return explain_refusal(error, [text for text in sys.argv[1:] if "=" in text and not text.startswith("-")])


def _flags() -> Namespace:
    """Parses the flags before Hydra does, so that a wrong one ends in one line instead of a usage text.

    Raises:
        ConfigError: Hydra has no such flag, or it lacks its value.
    """
    hint = "everything but Hydra's flags is given as key=value (see --help)"

    def fail(message: str) -> NoReturn:
        raise ConfigError(f"{message}; {hint}")

    parser = ArgumentParser(add_help=False)
    parser.error = fail  # type: ignore[method-assign]
    for names in _SWITCHES:
        parser.add_argument(*names, action="store_true")
    for names, choices in _VALUED.items():
        parser.add_argument(*names, choices=choices)
    parser.add_argument("--info", "-i", const="all", nargs="?", choices=_INFO)
    parser.add_argument("overrides", nargs="*")
    flags, unknown = parser.parse_known_args()
    if unknown:
        fail(f"unrecognized arguments: {' '.join(unknown)}")
    asked = next((each for each in flags.overrides if each.startswith("query=")), None)
    if flags.shell_completion and asked and "COMP_LINE" not in os.environ:
        raise ConfigError(f"--shell-completion {asked}: is asked by a shell, which sets COMP_LINE")
    return flags


def _print_help(flags: Namespace) -> None:
    """Prints the help text, or what of it the other arguments ask for."""
    own = [] if flags.config_dir is None else [Path(flags.config_dir)]
    if own and not own[0].is_dir():
        raise ConfigError(f"--config-dir={flags.config_dir}: not a folder")
    name = Path(sys.argv[0]).name
    program = f"python {name}" if name.endswith(".py") else name
    text = help_text.build([CONF, *own], flags.overrides, program)
    print(text, flush=True)


def _import_vllm(flags: Namespace) -> None:
    """Puts overrides in the place of `import_vllm=...` among the arguments; what they leave out goes to stderr."""
    folders = [CONF, *([] if flags.config_dir is None else [Path(flags.config_dir)])]
    sys.argv[1:], notes = vllm_import.expand(sys.argv[1:], folders)
    for note in notes:
        print(f"{vllm_import.KEY}: {note}", file=sys.stderr)


def _take_recorded() -> None:
    """Adds to the arguments what is known of the servers of the measured run that they name; says so on stderr."""
    if not any(text.startswith("validation.measured=") for text in sys.argv[1:]):
        return
    recorded = importlib.import_module("harness.measured.recorded_server")  # late, as most runs do without it
    sys.argv[1:], note = recorded.with_server(sys.argv[1:])
    if note:
        print(f"validation.measured: {note}", file=sys.stderr)
