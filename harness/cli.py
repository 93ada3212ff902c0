"""The command line: runs what Hydra composed, and ends every error of the user's with one line and exit code 2."""

import importlib
import logging
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from harness import interrupts
from harness.config.command_lines import KEYS
from harness.config.composing import CONF, kept_help
from harness.errors import USER_ERROR, ConfigError, TwinServeError
from harness.streams import tolerant

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
_NAMED = ("model=", "device=")
_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def main() -> int:
    """The console command `twinserve`, and what run.py does: runs the command line, and returns the exit code."""
    if not _VERBOSE.intersection(sys.argv):
        logging.getLogger("harness").setLevel(logging.ERROR)  # what is noted of a trace is in the summary, too
    with tolerant():
        return launch(_run_with_hydra)


def _run_with_hydra() -> None:
    with interrupts.held():  # imported late, so that --help is fast
        from harness.config.composing import known_commands
        from harness.jobs import run_known

    if (command := known_commands.find(sys.argv[1:])) is not None:
        run_known(command)
        return
    with interrupts.held():
        import hydra

        from harness.config.composing.composer import compose_once
        from harness.jobs import run_job
    compose_once()
    hydra.main(version_base=None, config_path=str(CONF), config_name="config")(run_job)()


def launch(main: Callable[[], None]) -> int:
    """Runs the Hydra entry point `main` and returns the process's exit code.

    Errors a user can cause become one line on stderr. With HYDRA_FULL_ERROR=1 in the environment, and for errors that
    are defects of this program, the exception is raised instead.
    """
    before = os.environ.get("HYDRA_FULL_ERROR", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them in its own way
    try:
        with interrupts.UNTIL_THE_END:
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
            elif flags.version:
                _print_version()
            else:
                _import_line(flags)
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
        if not isinstance(caught, TwinServeError | OSError) and not _overrides().is_refusal(caught):
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
        if (sweep := sys.modules.get("harness.studies.sweeps.sweep")) is not None:
            sweep.report_interrupted()
    print("interrupted", file=sys.stderr)
    return interrupts.INTERRUPTED


def explain(error: Exception) -> str:
    """One line for an error of the user's, with the nearest valid name where a name is wrong."""
    if isinstance(error, TwinServeError):
        return " ".join((str(error) or str(error.__cause__)).split())
    given = [text for text in sys.argv[1:] if "=" in text and not text.startswith("-")]
    return str(_overrides().explain_refusal(error, given))


def _overrides() -> ModuleType:
    return importlib.import_module("harness.config.composing.overrides")  # late, as it brings Hydra


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
    own = None if flags.config_dir is None else Path(flags.config_dir)
    if own and not own.is_dir():
        raise ConfigError(f"--config-dir={flags.config_dir}: not a folder")
    name = Path(sys.argv[0]).name
    program = f"python {name}" if name.endswith(".py") else name
    print(kept_help.text_of(flags.overrides, program, own), flush=True)


def _print_version() -> None:
    from harness.results.stored.environment import installed_version  # imported late, as runs do without it

    own = installed_version("twinserve") or "from a checkout that is not installed"
    print(f"TwinServe {own} (Hydra {installed_version('hydra-core')})")


def _import_line(flags: Namespace) -> None:
    """Puts overrides in the place of a command line of another tool and of published names; what they leave out goes
    to stderr."""
    key = next((key for key in KEYS for text in sys.argv[1:] if text.startswith(f"{key}=")), None)
    if key is None and not any(text.startswith(_NAMED) for text in sys.argv[1:]):
        return
    importing = importlib.import_module("harness.config.command_lines.importing")  # late, as most runs do without it
    folders = [CONF, *([] if flags.config_dir is None else [Path(flags.config_dir)])]
    sys.argv[1:], notes = importing.expand(sys.argv[1:], folders)
    for note in notes:
        print(f"{key}: {note}", file=sys.stderr)


def _take_recorded() -> None:
    """Adds to the arguments what is known of the servers of the measured run that they name; says so on stderr."""
    if not any(text.startswith("validation.measured=") for text in sys.argv[1:]):
        return
    recorded = importlib.import_module("harness.measured.recorded_server")  # late, as most runs do without it
    sys.argv[1:], note = recorded.with_server(sys.argv[1:])
    if note:
        print(f"validation.measured: {note}", file=sys.stderr)
