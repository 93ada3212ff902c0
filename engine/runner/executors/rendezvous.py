"""Temporary folders through which processes find each other, and which outlive no engine for long.

The process that makes a folder holds a lock (`flock`) on it. The system releases the lock when the process ends,
however it ends, so a folder without a lock is left over from a process that was killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "twinserve-ranks-"


class Rendezvous:
    """A temporary folder with a `store`, the file through which a process group's ranks find each other."""

    def __init__(self) -> None:
        self._folder, self._lock = _make_locked()

    @property
    def store(self) -> str:
        return str(self._folder / "store")

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def remove_left_overs() -> None:
    """Remove the folders whose processes have ended without removing them; those of running processes stay."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = _open(folder)
        except OSError:
            continue  # another user's, or removed meanwhile
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass  # a running process holds the lock
        finally:
            os.close(lock)


def _make_locked() -> tuple[Path, int]:
    """A new folder and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = _open(folder)
        except FileNotFoundError:
            continue  # removed as left over, between its making and its locking
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
