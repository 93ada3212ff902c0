"""Calls a function of an event loop at a time, to the nearest tenth of a millisecond.

The timers of an event loop are up to a millisecond late, since `epoll` waits for whole milliseconds. Linux has timers
that are files, which wake it when they are due. Elsewhere the last millisecond is spent looking at the clock.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_EARLY_NS = 1_200_000  # before the time, from when on the clock is looked at
_HAS_FILES = sys.platform == "linux"
_ABSOLUTE = 1
_S_NS = 10**9


class Alarm:
    """Calls what was `set` last, once, when `time.monotonic_ns` has reached its time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due_ns = 0
        self._call: Callable[[], None] | None = None
        self._file = -1
        if _HAS_FILES:
            self._libc = ctypes.CDLL(None)
            self._file = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file >= 0:
            loop.add_reader(self._file, self._on_timer)

    def set(self, due_ns: int, call: Callable[[], None]) -> None:
        self._due_ns, self._call = due_ns, call
        if self._file < 0:
            self._look(due_ns)
            return
        seconds, rest = divmod(due_ns, _S_NS)
        once = (ctypes.c_long * 4)(0, 0, seconds, rest)  # no interval
        self._libc.timerfd_settime(self._file, _ABSOLUTE, ctypes.byref(once), None)

    def close(self) -> None:
        """Call nothing any more."""
        self._call = None
        if self._file >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _on_timer(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was set anew since
            return
        self._ring()

    def _look(self, due_ns: int) -> None:
        if due_ns != self._due_ns or self._call is None:  # another time was set since
            return
        left_ns = due_ns - time.monotonic_ns()
        if left_ns > _EARLY_NS:
            self._loop.call_later((left_ns - _EARLY_NS) * 1e-9, self._look, due_ns)
        elif left_ns > 0:
            self._loop.call_soon(self._look, due_ns)
        else:
            self._ring()

    def _ring(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()
