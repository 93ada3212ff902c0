"""How soon a thread gets its turn: of Python's threads, and of all that wait for a core."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SWITCH_S = 5e-5  # how long Python lets a thread go on when another waits; 5 ms is longer than a step
_SLICE_NS = 100_000  # the shortest that Linux takes
_CALLS = {"x86_64": (315, 314), "aarch64": (275, 274)}  # numbers of sched_getattr and sched_setattr
_ATTR = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period
_SLICE = 5  # place of the runtime, which is the slice of an ordinary thread


@contextmanager
def quick_switches() -> Iterator[None]:
    """The thread of an engine gives way soon to the one that takes requests in and tells what came out."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@contextmanager
def quick_wakes() -> Iterator[None]:
    """This thread gets a core soon after it wakes, where all are busy: one that waits for data and then has little to
    do would else wait for the end of another thread's slice, up to 4 ms.

    Linux since 6.12 lets a thread with a shorter slice go before one with a longer slice, and gives both as much time
    as before. Elsewhere this does nothing. Threads that this one begins meanwhile are as it is.
    """
    before = _attributes()
    if before is None:
        yield
        return
    _set_slice(before, _SLICE_NS)
    try:
        yield
    finally:
        _set_slice(before, before[_SLICE])


def _attributes() -> tuple[int, ...] | None:
    """How Linux schedules this thread; None where that is not known, or not as most threads."""
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        return None
    buffer = ctypes.create_string_buffer(_ATTR.size)
    failed = ctypes.CDLL(None).syscall(_CALLS[platform.machine()][0], 0, buffer, _ATTR.size, 0)
    found = _ATTR.unpack(buffer.raw)
    return None if failed or found[1] else found  # 0 is SCHED_OTHER


def _set_slice(attributes: tuple[int, ...], slice_ns: int) -> None:
    changed = (*attributes[:_SLICE], slice_ns, *attributes[_SLICE + 1 :])
    ctypes.CDLL(None).syscall(_CALLS[platform.machine()][1], 0, _ATTR.pack(*changed), 0)
