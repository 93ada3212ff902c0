"""Runs probes and trials in processes of their own, which stay for all searches of this process."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from harness import interrupts
from harness.config import RunConfig
from harness.errors import TwinServeError
from harness.studies.capacity.probe import Probe, run_probe

T = TypeVar("T")
_POOLS: dict[int, ProcessPoolExecutor] = {}  # by their number of processes
_STARTING = threading.Lock()
_are_ended = threading.Event()


def run_all(jobs: Sequence[tuple[RunConfig, str, Path, int]], workers: int | None) -> list[Probe]:
    """`run_probe` of each job, on as many processes as `num_workers` says. This process is one of them, as it has read
    the profile already, and a scout, which runs alone, starts no other; but not where several threads of it search.

    Raises:
        TwinServeError: as `run_probe`, or a process was killed.
        KeyboardInterrupt: the search was interrupted; probes under way are not kept.
    """
    workers = num_workers([config for config, *_ in jobs], workers)
    is_alone = _is_main() or workers == 1
    own = range(0, len(jobs), workers) if is_alone else ()
    with ended_on_failure():
        others = {
            number: _elsewhere(workers - is_alone, partial(run_probe, *job))
            for number, job in enumerate(jobs)
            if number not in own
        }
        done = {number: run_probe(*jobs[number]) for number in own}
        return [done[number] if number in done else others[number].result() for number in range(len(jobs))]


def num_workers(configs: Iterable[RunConfig], workers: int | None) -> int:
    """Processes to use where `workers` is asked for: one per core where it is None, and one for a real engine, which
    has the machine to itself, or inside a worker of a parallel sweep."""
    is_worker = multiprocessing.parent_process() is not None
    alone = is_worker or any(config.engine.kind != "sim" for config in configs)
    return 1 if alone else workers or os.cpu_count() or 1


def submit(workers: int, job: Callable[[], T]) -> Future[T]:
    """Run a job on one of `workers` processes; with one, in this process, before the call returns."""
    if workers > 1:
        return _elsewhere(workers, job)
    future: Future[T] = Future()
    try:
        future.set_result(job())
    except Exception as error:
        future.set_exception(error)
    return future


def _elsewhere(processes: int, job: Callable[[], T]) -> Future[T]:
    """Run a job on one of so many other processes; raises KeyboardInterrupt where another thread has ended them."""
    if _is_main():
        begin_anew()
    elif _are_ended.is_set():
        raise KeyboardInterrupt
    with _STARTING, _main_left_out(), interrupts.held():  # a process that is being started is not known yet, nor ended
        return _pool(processes).submit(job)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def _main_left_out() -> Iterator[None]:
    """Processes that start inside the block do not run the program of this one, as multiprocessing would have them do:
    a script of the user's would start its search in each of them."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def ended_on_failure() -> Iterator[None]:
    """Where the block raises, the processes end, but for a block in a thread, beside which others go on; raises
    TwinServeError where a process was killed, and KeyboardInterrupt where another thread ended them."""
    try:
        yield
    except (BrokenProcessPool, CancelledError):
        if _are_ended.is_set():
            raise KeyboardInterrupt from None
        _POOLS.clear()
        raise TwinServeError(
            "a process of the search was killed, perhaps for want of memory; use fewer: capacity.workers=1, "
            "search.workers=1"
        ) from None
    except BaseException:
        if _is_main():
            end_processes()
        raise


def _pool(processes: int) -> ProcessPoolExecutor:
    if processes not in _POOLS:
        _POOLS[processes] = _started(processes)
    return _POOLS[processes]


def _started(processes: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("forkserver")  # a fork of this process would inherit its threads' locks
    context.set_forkserver_preload(["harness.studies.capacity.probe"])
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_begin_worker)


def _begin_worker() -> None:
    """Ctrl-C reaches all processes of a terminal; the parent ends its workers itself, and alone warns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()


def begin_anew() -> None:
    """Threads of this process may run jobs on others again."""
    _are_ended.clear()


def end_processes() -> None:
    """End the workers, those in the middle of a probe included. Threads that run jobs on them get KeyboardInterrupt."""
    _are_ended.set()
    pools = [*_POOLS.values()]
    _POOLS.clear()
    for process in multiprocessing.active_children() if pools else ():
        process.kill()  # nothing of what is under way is kept, and a signal would only stop a simulation
    for pool in pools:
        pool.shutdown(wait=True, cancel_futures=True)
