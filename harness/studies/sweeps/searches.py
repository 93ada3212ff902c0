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

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from harness.config import RunConfig, parse
from harness.errors import TwinServeError
from harness.studies.capacity.capacity import find
from harness.studies.capacity.worker_pool import ended_on_failure, num_workers

Execute = Callable[..., object]
_waiting: list[Callable[[], None]] = []
_most_workers = [1]


def takes(cfg: DictConfig) -> bool:
    """Whether a job is a search whose probes may run in processes of their own."""
    try:
        config = parse(cfg)
    except TwinServeError:  # which the job tells
        return False
    return config.task == "capacity" and not config.verbose and _num_workers(config) > 1


def add(cfg: DictConfig, execute: Execute, run: Callable[[Execute], None]) -> None:
    """Let `run_all` call `run` of a job, which `takes` takes, with what executes its configuration in its folder:
    `execute` of `harness.jobs`, but without a word, as threads share the streams, and with what Hydra knows now."""
    given = list(HydraConfig.get().overrides.task)
    _most_workers[0] = max(_most_workers[0], _num_workers(parse(cfg)))
    _waiting.append(partial(run, partial(_search, execute, given)))


def _num_workers(config: RunConfig) -> int:
    return num_workers([config], config.capacity.workers)


def _search(execute: Execute, given: Sequence[str], config: RunConfig, folder: Path) -> str:
    """What it printed: nothing. The end of the sweep confirms the best."""
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
