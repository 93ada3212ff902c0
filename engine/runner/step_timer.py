"""Measures how long sampling took in a plan, without synchronising host and device while the plan runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class StepTimer:
    """Times the sampling of plans: with CUDA events, which are reused, on a GPU; with the clock on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._free: list[tuple[Any, Any]] = []
        self._used: list[tuple[Any, Any]] = []
        self._clock_ns = 0

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Kernels launched inside this context count as sampling."""
        if not self._is_cuda:
            started = time.perf_counter_ns()
            yield
            self._clock_ns += time.perf_counter_ns() - started
            return
        begin, end = self._free.pop() if self._free else (_event(), _event())
        begin.record()
        yield
        end.record()
        self._used.append((begin, end))  # not if a step fails before: nobody can ask for the time of such an event

    def take(self) -> Callable[[], int]:
        """End a plan. Returns a function that returns the time of its sampling, in ns, when the device has finished."""
        used, clock_ns = self._used, self._clock_ns
        self._used, self._clock_ns = [], 0

        def sample_ns() -> int:
            events_ns = sum(int(begin.elapsed_time(end) * 1e6) for begin, end in used)
            self._free.extend(used)
            return clock_ns + events_ns

        return sample_ns


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)
