"""Searches for capacities in a sweep, several at a time: no core waits while one of them runs a scout or a last probe.

Each has a thread of this process, which decides what to run next, and begins while Hydra composes later jobs. The
probes of all run in the processes of `harness.studies.capacity.worker_pool`. What a search finds is the same as alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from harness.config import RunConfig, parse
from harness.errors import TwinServeError
from harness.studies.capacity.capacity import find
from harness.studies.capacity.worker_pool import begin_anew, end_processes, ended_on_failure, num_workers

Execute = Callable[..., object]
_under_way: list[Searches] = []  # of the sweep of this process, if it has any


class Searches:
    """The searches of a sweep whose probes run on so many processes; of these, one more is under way than processes,
    so that none of them waits for a search that decides."""

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers + 1, thread_name_prefix="search")
        self._is_over = threading.Event()
        self._begun: list[Future[None]] = []
        begin_anew()

    def add(self, job: Callable[[], object]) -> None:
        """Run a job as soon as others have ended."""
        self._begun.append(self._threads.submit(self._run, job))

    def stop(self) -> None:
        """End the processes, and so the searches that have begun; begin no other."""
        self._is_over.set()
        end_processes()

    def wait(self) -> None:
        """Wait for all; raises KeyboardInterrupt where a signal came. Searches that had begun then write what they
        know."""
        try:
            with ended_on_failure():
                for each in self._begun:
                    each.result()
        finally:
            self._is_over.set()
            self._threads.shutdown()

    def _run(self, job: Callable[[], object]) -> None:
        if not self._is_over.is_set():
            job()


def taken(cfg: DictConfig) -> RunConfig | None:
    """The configuration of a job that is a search whose probes may run in processes of their own; None of others."""
    try:
        config = parse(cfg)
    except TwinServeError:  # which the job tells
        return None
    is_taken = config.task == "capacity" and not config.verbose and _num_workers(config) > 1
    return config if is_taken else None


def add(config: RunConfig, execute: Execute, run: Callable[[Execute], None]) -> None:
    """Begin a job that was `taken`: call `run` with what executes its configuration in its folder, which is `execute`
    of `harness.jobs`, but without a word, as threads share the streams, and with what Hydra knows now."""
    given = list(HydraConfig.get().overrides.task)
    if not _under_way:
        _under_way.append(Searches(_num_workers(config)))
    _under_way[0].add(partial(run, partial(_search, execute, given)))


def end(*, interrupted: bool = False) -> None:
    """Wait for the searches that have begun, which end at once where a signal came; raises as `Searches.wait`."""
    if not _under_way:
        return
    searches = _under_way.pop()
    if interrupted:
        searches.stop()
    searches.wait()


def _num_workers(config: RunConfig) -> int:
    return num_workers([config], config.capacity.workers)


def _search(execute: Execute, given: Sequence[str], config: RunConfig, folder: Path) -> str:
    """What it printed: nothing. The end of the sweep confirms the best."""
    execute(config.model_copy(update={"progress": False}), folder, partial(find, given=given, confirms=False))
    return ""
