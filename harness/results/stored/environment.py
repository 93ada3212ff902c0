"""What is recorded about the process that a result comes from: versions, git revision, hardware, command."""

from __future__ import annotations

import os
import platform
import re
import resource
import shlex
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Any

_CGROUPS = Path("/sys/fs/cgroup")
_REVISION = "# branch.oid "  # what git writes before it
_PACKAGES = ("numpy", "pandas", "simpy", "twinserve", "torch")


def environment() -> dict[str, Any]:
    """Versions, git revision and hardware of this process; None for what cannot be found out."""
    revision, dirty = _git_state(Path(__file__).resolve().parents[3])
    return {
        "python": platform.python_version(),
        **{name: installed_version(name) for name in _PACKAGES},
        "compiled_core": is_compiled("engine.core.scheduler"),
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


def available_memory_bytes() -> int | None:
    """Memory that this process can still take: free on the machine, and within the limits of the process and of its
    control groups; None where nothing is known."""
    known = [_free_memory(), _below_process_limit(), *map(_below_group_limit, _memory_groups())]
    return min((each for each in known if each is not None), default=None)


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


def is_compiled(module: str) -> bool:
    """Whether a module of this project is compiled (`setup.py`), and not read as Python."""
    spec = util.find_spec(module)
    return spec is not None and not str(spec.origin).endswith(".py")


def installed_version(package: str) -> str | None:
    """None if it is not installed. From the first lines of its metadata: `metadata.version` parses all, such as the
    README in it."""
    try:
        found = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None
    head = re.search(r"^Version: (.*)$", found.read_text("METADATA") or "", re.MULTILINE)
    return head[1].strip() if head else found.version


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
        text = _git_status(root)
    except (OSError, subprocess.SubprocessError):
        return None, None
    lines = text.splitlines()
    heads = [line for line in lines if line.startswith("# ")]
    revision = next((line.removeprefix(_REVISION) for line in heads if line.startswith(_REVISION)), None)
    return (None, None) if revision in (None, "(initial)") else (revision, len(lines) > len(heads))


def _git_status(root: Path) -> str:
    """The revision and a line for each file that differs, from one process."""
    options = ["--porcelain=v2", "--branch", "--no-ahead-behind"]
    command = ["git", "-C", str(root), "--no-optional-locks", "status", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _free_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    values = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(kilobytes) * 1024 for kilobytes in values), None)


def _below_process_limit() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    except OSError:
        return limit
    return max(0, limit - pages * os.sysconf("SC_PAGE_SIZE"))


def _memory_groups() -> list[Path]:
    """Folders of the control groups that may limit this process's memory: its own and those around it."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if kinds in ("", "memory"):
            root = _CGROUPS / kinds
            group = root / name.lstrip("/")
            folders += [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
    return folders


def _below_group_limit(folder: Path) -> int | None:
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        try:
            texts = [(folder / name).read_text(encoding="utf-8").strip() for name in (limit, used)]
        except OSError:
            continue
        if texts[0] != "max":
            return max(0, int(texts[0]) - int(texts[1]))
    return None
