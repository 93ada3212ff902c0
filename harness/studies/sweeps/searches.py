"""Searches for capacities in a sweep, several at a time: no core waits while one of them runs a scout or a last probe.

They begin when all jobs of the sweep are known. Each has a thread of this process, which decides what to run next;
the probes of all run in the processes of `harness.studies.capacity.worker_pool`. What a search finds is the same as
alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from harness.config import RunConfig
from harness.studies.capacity.capacity import find
from harness.studies.capacity.worker_pool import ended_on_failure, num_workers

_waiting: list[Callable[[], None]] = []
_most_workers = [1]


def takes(config: RunConfig) -> bool:
    """Whether a job is a search whose probes may run in processes of their own."""
    return config.task == "capacity" and not config.verbose and num_workers([config], config.capacity.workers) > 1


def add(config: RunConfig, job: Callable[[], None]) -> None:
    """Let `run_all` run a job, which `takes` takes."""
    _most_workers[0] = max(_most_workers[0], num_workers([config], config.capacity.workers))
    _waiting.append(job)


def search(execute: Callable[..., object], given: Sequence[str], config: RunConfig, folder: Path) -> str:
    """Find the capacity of a job of a sweep through `execute` of `harness.jobs`. Nothing is printed, as threads share
    the streams; the end of the sweep confirms the best."""
    execute(config.model_copy(update={"progress": False}), folder, partial(find, given=given, confirms=False))
    return ""


def run_all() -> None:
    """Run the jobs that wait.

    Raises:
        KeyboardInterrupt: a signal came. Searches that had begun have written what they know.
    """
    jobs = [*_waiting]
    _waiting.clear()
    if not jobs:
        return
    is_over = threading.Event()

    def run(job: Callable[[], None]) -> None:
        if not is_over.is_set():
            job()

    with ThreadPoolExecutor(_most_workers[0] + 1, thread_name_prefix="search") as threads:
        try:
            with ended_on_failure():
                for done in [threads.submit(run, job) for job in jobs]:
                    done.result()
        finally:
            is_over.set()
