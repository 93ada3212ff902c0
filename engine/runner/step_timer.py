"""How long sampling took within a plan, without waiting for the device in its middle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class StepTimer:
    """Times the parts of a plan that sample: by CUDA events, which are reused, or by the clock on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._events: list[tuple[Any, Any]] = []
        self._num_used = 0
        self._clock_ns = 0

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """What is launched within counts as sampling."""
        if not self._is_cuda:
            started = time.perf_counter_ns()
            yield
            self._clock_ns += time.perf_counter_ns() - started
            return
        if self._num_used == len(self._events):
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        begin, end = self._events[self._num_used]
        self._num_used += 1
        begin.record()
        yield
        end.record()

    def sample_ns(self) -> int:
        """Time since the last call; all of it must be over on the device."""
        events_ns = sum(int(begin.elapsed_time(end) * 1e6) for begin, end in self._events[: self._num_used])
        total, self._num_used, self._clock_ns = self._clock_ns + events_ns, 0, 0
        return total
