"""What Ctrl-C and SIGTERM do: at each stage of the program what loses nothing.

stage                                           the first signal                                        the third
imports of run.py, and after the end            ends the process at once: there is nothing to lose
anything else                                   KeyboardInterrupt (`raised`)
an engine serves, results are written           the engine stops; results are written (`noted`)         ends it at once
late imports                                    KeyboardInterrupt once they are done (`held`)           ends it at once

An exception from a signal handler must not meet an import: some C extensions print it and raise another one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # exit code, as of a process that SIGINT ended
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 3  # the signal with this number ends the process
_STILL_ENDING = b"still writing what was recorded; interrupt once more to lose it\n"

_Handler = Callable[[int, FrameType | None], None]


def exit_at_once(number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """End the process; also a signal handler."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # such as RuntimeError, where the signal came in the middle of a write
            stream.flush()
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


@contextmanager
def raised() -> Iterator[None]:
    """Signals raise KeyboardInterrupt inside the block."""
    with _handled(_raise):
        yield


@contextmanager
def noted(on_first: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    """Signals are only appended to the list; the first one calls `on_first`, the third ends the process."""
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) == 1:
            on_first()
        elif len(signals) < _PATIENCE:
            os.write(2, _STILL_ENDING)
        else:
            exit_at_once()

    with _handled(note):
        yield signals


@contextmanager
def held() -> Iterator[None]:
    """Signals wait until the end of the block; the first one then does what it does outside."""
    try:
        with noted() as signals:
            yield
    finally:
        if signals:
            signal.raise_signal(signals[0])


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _handled(handler: _Handler) -> Iterator[None]:
    """Let `handler` have the signals inside the block. Only the main thread may set handlers; others change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, handler)) for number in SIGNALS]
    try:
        yield
    finally:
        for number, earlier in before:
            signal.signal(number, earlier)
