"""What is recorded about the process that a result comes from: versions, git revision, hardware, command."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("numpy", "pandas", "simpy", "twinserve", "torch")


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
    """The command of this process, without arguments that name folders of this machine."""
    arguments = [each for each in sys.argv[1:] if not each.startswith(("profile.out=", "hydra."))]
    return shlex.join(["python", "run.py", *arguments])


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


def slug(name: str) -> str:
    """`name` in lower case, without trademark signs; other characters than letters, digits and dots become hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", re.sub(r"\((r|tm)\)", "", name.lower())).strip("-")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _transparent_hugepage() -> str | None:
    """Which memory gets huge pages on Linux: always, madvise (on request) or never."""
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


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
