"""Files in the user's cache folder, which a later process takes instead of composing anew."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_MOST = 100  # files of a kind, of about 32 kB each


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "twinserve"


def stamp(path: str | Path) -> tuple[str, int, int]:
    """Path, size and time of the last change of a file."""
    status = os.stat(path)
    return str(path), status.st_size, status.st_mtime_ns


def stamps(folder: str) -> Iterator[tuple[str, int, int]]:
    """The `stamp` of each file of a tree, in the order of their names."""
    with suppress(OSError):  # Hydra says what is wrong with a folder
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.is_dir():
                yield from stamps(entry.path)
            elif entry.name.rpartition(".")[2] != "pyc":
                yield stamp(entry.path)


def read_own(path: Path) -> bytes | None:
    """What a file of this user's holds; None for one of another's, and where there is none."""
    try:
        with path.open("rb") as file:
            is_own = not hasattr(os, "getuid") or os.fstat(file.fileno()).st_uid == os.getuid()
            return file.read() if is_own else None
    except OSError:
        return None


def write_own(path: Path, content: bytes) -> None:
    """Whole or not at all; the files of its kind that were written longest ago make room."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)
    entries = sorted(path.parent.glob(f"*{path.suffix}"), key=lambda entry: entry.stat().st_mtime_ns)
    for entry in entries[:-_MOST]:
        entry.unlink(missing_ok=True)
