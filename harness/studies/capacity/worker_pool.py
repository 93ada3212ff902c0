"""Runs probes and trials in processes of their own, which stay for all searches of this process."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from harness import interrupts
from harness.config import RunConfig
from harness.errors import TwinServeError
from harness.studies.capacity.probe import Probe, run_probe

T = TypeVar("T")


def run_all(jobs: Sequence[tuple[RunConfig, str, Path, int]], workers: int | None) -> list[Probe]:
    """`run_probe` of each job, on as many processes as `num_workers` says.

    Raises:
        TwinServeError: as `run_probe`, or a process was killed.
        KeyboardInterrupt: the search was interrupted; probes under way are not kept.
    """
    workers = num_workers([config for config, *_ in jobs], workers)
    with ended_on_failure(workers):
        futures = [submit(workers, partial(run_probe, *job)) for job in jobs]
        return [future.result() for future in futures]


def num_workers(configs: Iterable[RunConfig], workers: int | None) -> int:
    """Processes to use where `workers` is asked for: one per core where it is None, and one for a real engine, which
    has the machine to itself, or inside a worker of a parallel sweep."""
    is_worker = multiprocessing.parent_process() is not None
    alone = is_worker or any(config.engine.kind != "sim" for config in configs)
    return 1 if alone else workers or os.cpu_count() or 1


def submit(workers: int, job: Callable[[], T]) -> Future[T]:
    """Run a job on one of `workers` processes; with one, in this process, before the call returns."""
    if workers > 1:
        with _main_left_out(), interrupts.held():  # a process that is being started is not known yet, nor ended
            return _pool(workers).submit(job)
    future: Future[T] = Future()
    try:
        future.set_result(job())
    except Exception as error:
        future.set_exception(error)
    return future


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
def ended_on_failure(workers: int) -> Iterator[None]:
    """Where the block raises, the processes end; raises TwinServeError where one of them was killed."""
    try:
        yield
    except BrokenProcessPool:
        _pool.cache_clear()
        raise TwinServeError(
            "a process of the search was killed, perhaps for want of memory; use fewer: capacity.workers=1, "
            "search.workers=1"
        ) from None
    except BaseException:
        if workers > 1:
            _end(workers)
        raise


@cache
def _pool(workers: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("forkserver")  # a fork of this process would inherit its threads' locks
    context.set_forkserver_preload(["harness.studies.capacity.probe"])
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker)


def _begin_worker() -> None:
    """Ctrl-C reaches all processes of a terminal; the parent ends its workers itself, and alone warns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()


def _end(workers: int) -> None:
    """End the workers, those in the middle of a probe included."""
    pool = _pool(workers)
    _pool.cache_clear()
    for process in multiprocessing.active_children():
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)
