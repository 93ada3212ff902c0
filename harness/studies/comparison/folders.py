"""Which result folders the user means: runs, sweeps, and names with wildcards."""

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path

from engine.documents import DocumentError, read_text, user_path
from harness.errors import ConfigError
from harness.results.stored.files import CAPACITY, FAILED, SUMMARY


def expand_results(results: Iterable[str]) -> list[Path]:
    """The result folders meant by `results`: the folder of a run stands for itself, that of a sweep for its jobs.

    `~` is the home folder; `*`, `?`, `[...]` and `**` stand for any names of folders that fit, unless a folder has that
    very name. A folder that is named twice is there once. One without a result stands for itself.

    Raises:
        ConfigError: none of them holds a result.
    """
    folders: dict[str, Path] = {}
    problems, num_found = [], 0
    for name in results:
        matches = _matches(name)
        found = [each for folder in matches for each in _results_in(folder)]
        num_found += len(found)
        if not matches:
            problems.append(f"results: no folder matches {name}")
        elif not matches[0].is_dir():
            problems.append(f"results: {name} is not a folder; give folders of earlier runs or sweeps")
        elif not found:
            problems.append(f"results: {name} holds no result (no {SUMMARY} in it or below it)")
        for each in found or matches:
            folders.setdefault(os.path.realpath(each), each)
    if problems and not num_found:
        raise ConfigError(problems[0])
    return list(folders.values())


def _matches(name: str) -> list[Path]:
    """The folders that a name with wildcards stands for, in natural order; the name itself where it has none."""
    path = user_path(name)
    if path.exists() or not glob.has_magic(name):
        return [path]
    found = (Path(match) for match in glob.glob(str(path), recursive=True))
    return sorted((match for match in found if match.is_dir()), key=_natural)


def _results_in(folder: Path) -> list[Path]:
    return [folder] if (folder / SUMMARY).exists() else job_folders(folder)


def _natural(path: Path) -> list[str]:
    """Sorts numbers in names by value."""
    return [part.zfill(20) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


def job_folders(folder: Path) -> list[Path]:
    """Folders at or below `folder` that hold a result or the record of a failure; those of a sweep in the order in
    which its command names them, others by name, numbers in it by value."""
    folders = {path.parent for name in (SUMMARY, FAILED) for path in folder.rglob(name)}
    return sorted(folders, key=lambda each: (_job_number(each), _natural(each)))


def _job_number(folder: Path) -> int:
    """The place of a job in its sweep, as Hydra records it; 0 where it does not."""
    try:
        found = re.search(r"^    num: (\d{1,9})$", read_text(folder / ".hydra" / "hydra.yaml"), re.MULTILINE)
    except (DocumentError, OSError):
        return 0
    return int(found[1]) if found else 0


def capacity_folders(folder: Path) -> list[Path]:
    """Folders of the jobs of a sweep that hold a capacity."""
    return sorted((path.parent for path in folder.glob(f"*/{CAPACITY}")), key=_natural)
