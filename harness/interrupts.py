"""What Ctrl-C and SIGTERM do at each stage of the program, so that an interrupt loses nothing and prints no traceback.

stage                                    the first signal                                          the third
imports of run.py; after the end         ends the process: there is nothing to lose
an engine serves, results are written    stops the engine, whose results are written (`noted`)     ends the process
late imports                             raises KeyboardInterrupt when they are done (`held`)      ends the process
a sweep in worker processes              stops all of them (`Forwarded`)                           ends all of them
anything else                            raises KeyboardInterrupt (`raised`)

An exception from a signal handler must not meet an import: some C extensions print it and raise another one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # exit code, as of a process that SIGINT ended
SIGNALS = (signal.SIGINT, signal.SIGTERM)
UNTIL_THE_END = ExitStack()  # what callbacks of Hydra open; they go to worker processes as copies and so cannot hold it
_PATIENCE = 3  # the signal with this number ends the process
_POLL_S = 0.1
_raised: list[int] = []
_STILL_ENDING = b"still writing what was recorded; interrupt once more to lose it\n"

_Handler = Callable[[int, FrameType | None], None]


def end_at_once() -> None:
    """From now on signals end the process, also where who started it had blocked them."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: _end())


@contextmanager
def raised() -> Iterator[None]:
    """Signals raise KeyboardInterrupt inside the block."""
    _raised.clear()
    with _handled(_raise):
        yield


def was_raised() -> bool:
    """Whether a signal raised KeyboardInterrupt in this thread since the last block of `raised` began, whatever became
    of it: a library may raise something else in its place, or go on; Python itself goes on after a finalizer."""
    return bool(_raised) and threading.current_thread() is threading.main_thread()


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
            _end()

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


class Forwarded:
    """Signals go to the worker processes of this process, as SIGTERM; after the block the first one acts here, too.

    The main thread masks them inside the block, and so does every worker that is started there until it calls
    `received_in_worker`: no signal meets a worker that is not ready for it. Threads of libraries that started before
    mask nothing, so a handler is needed beside the thread that waits. The third ends this process and its workers.

    Not a generator: a suspended one that is dropped runs to its end, where the signal would raise what Python prints
    and ignores.
    """

    def __init__(self) -> None:
        signals: list[int] = []
        self._signals, self._is_over = signals, threading.Event()
        arguments = (signals, self._is_over)
        self._watcher = threading.Thread(target=_forward, args=arguments, name="signals", daemon=True)
        self._handling = _handled(lambda number, frame: signals.append(number))

    def __enter__(self) -> None:
        from multiprocessing import resource_tracker  # imported late, as a run does without it

        resource_tracker.ensure_running()  # its start, which unmasks signals, must not come later
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # raises what a signal until now raises
            self._watcher.start()
            self._handling.__enter__()
        except BaseException:
            self._is_over.set()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            raise

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._watcher.join()
        self._handling.__exit__(None, None, None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if self._signals:
            signal.raise_signal(self._signals[0])


def _forward(signals: list[int], is_over: threading.Event) -> None:
    told: set[int] = set()
    is_warned = False
    while not is_over.is_set():
        received = signal.sigtimedwait(SIGNALS, _POLL_S)
        if received is not None:
            signals.append(received.si_signo)
        if len(signals) >= _PATIENCE:
            _send(signal.SIGKILL, _workers())
            _end()
        if len(signals) > 1 and not is_warned:
            os.write(2, _STILL_ENDING)
            is_warned = True
        if signals:
            new = _workers() - told  # some may have started since
            _send(signal.SIGTERM, new)
            told |= new


@cache
def received_in_worker() -> list[int]:
    """In a worker of a parent in `Forwarded`: the list to which the parent's SIGTERM is appended from now on."""
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return signals


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    _raised.append(number)
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


def _workers() -> set[int]:
    import multiprocessing  # imported by `Forwarded`

    return {worker.pid for worker in multiprocessing.active_children() if worker.pid is not None}


def _send(number: signal.Signals, processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _end() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # such as RuntimeError, where the signal came in the middle of a write
            stream.flush()
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
