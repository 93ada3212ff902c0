"""The lock of a result folder: one process writes to it at a time.

The lock is on the file `.lock` in the folder and ends with the process, however that ends; the file stays.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import TwinServeError

_LOCK = ".lock"
_TEMPORARY = re.compile(r"\..+\.\d+(\.\w+)?")  # as `write_whole` names them


class FolderInUseError(TwinServeError):
    """Another process is writing to a result folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to `folder`, which is made if need be.

    Raises:
        FolderInUseError: another process is writing to the folder.
        OSError: the folder cannot be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _take(descriptor, folder)
        for left in folder.iterdir():  # by a process that was killed while it wrote
            if _TEMPORARY.fullmatch(left.name):
                left.unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderInUseError(f"{folder}: another run is writing to this folder; choose another one") from None
    except OSError:
        pass  # some network file systems have no locks
