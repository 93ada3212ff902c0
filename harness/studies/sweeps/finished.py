"""Which jobs of a sweep need not run again."""

from pathlib import Path

from harness.config import RunConfig, load
from harness.errors import ConfigError, TwinServeError
from harness.results.stored.files import FAILED, read_summary
from harness.results.stored.inputs import input_digests, read_inputs
from harness.workload.trace import file_stamp


def is_complete(folder: Path) -> bool:
    """Whether `folder` holds the result of a run that was neither cut short nor repeated with an error."""
    try:
        return read_summary(folder)["complete"] is True and not (folder / FAILED).exists()
    except TwinServeError:
        return False


def is_finished(config: RunConfig, folder: Path) -> bool:
    """Whether `folder` holds the complete result of this very configuration, of which what it shows is not part,
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
    shown = {key: getattr(config, key) for key in ("progress", "verbose", "plot", "report", "sinks")}
    return earlier.model_copy(update=shown) == config


def failures(folder: Path) -> dict[Path, int]:
    """The failed.json files below `folder` with the time each was written, in ns."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob(FAILED)}
