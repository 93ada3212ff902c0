"""Runs probes in processes of their own, which stay for all searches of this process."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path

from harness.capacity.probe import Probe, run_probe
from harness.config import RunConfig
from harness.errors import TwinServeError


def run_all(jobs: Sequence[tuple[RunConfig, str, Path]], workers: int | None) -> list[Probe]:
    """`run_probe` of each job, on `workers` processes: one per core where it is None, and one for a real engine, which
    has the machine to itself, or inside a worker of a parallel sweep.

    Raises:
        TwinServeError: as `run_probe`, or a process was killed.
        KeyboardInterrupt: the search was interrupted; probes under way are not kept.
    """
    is_worker = multiprocessing.parent_process() is not None
    alone = is_worker or any(config.engine.kind != "sim" for config, _, _ in jobs)
    workers = 1 if alone else workers or os.cpu_count() or 1
    if workers == 1:
        return [run_probe(*job) for job in jobs]
    try:
        futures = [_pool(workers).submit(run_probe, *job) for job in jobs]
        return [future.result() for future in futures]
    except BrokenProcessPool:
        _pool.cache_clear()
        raise TwinServeError(
            "a process of the search was killed, perhaps for want of memory; set capacity.workers=1"
        ) from None
    except BaseException:
        _end(workers)
        raise


@cache
def _pool(workers: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("forkserver")  # a fork of this process would inherit its threads' locks
    context.set_forkserver_preload(["harness.capacity.probe"])
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
