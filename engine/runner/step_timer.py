"""Measures how long sampling took in a plan, without synchronising host and device while the plan runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class StepTimer:
    """Times the sampling of a plan: with CUDA events, which are reused, on a GPU; with the clock on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._events: list[tuple[Any, Any]] = []
        self._num_used = 0
        self._clock_ns = 0

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Kernels launched inside this context count as sampling."""
        if not self._is_cuda:
            started = time.perf_counter_ns()
            yield
            self._clock_ns += time.perf_counter_ns() - started
            return
        if self._num_used == len(self._events):
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        begin, end = self._events[self._num_used]
        begin.record()
        yield
        end.record()
        self._num_used += 1  # not if a step fails in between: the time of an event that never came cannot be asked for

    def sample_ns(self) -> int:
        """Time of the sampling since the last call, in ns; the device must have finished it."""
        events_ns = sum(int(begin.elapsed_time(end) * 1e6) for begin, end in self._events[: self._num_used])
        total, self._num_used, self._clock_ns = self._clock_ns + events_ns, 0, 0
        return total
