"""What a section gets, and how it times and reports."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

_QUEUEING_CYCLES = 2_000_000  # cycles of the device: about a millisecond


class SkippedError(RuntimeError):
    """The section cannot run here, for the reason in the message: a package is missing."""


@dataclass(frozen=True)
class Check:
    """A value and whether it meets its goal; `passed` is None without a goal."""

    name: str
    value: str
    goal: str = ""
    passed: bool | None = None


@dataclass
class Context:
    """The device and sizes to measure with, and the results so far.

    Attributes:
        rehearse: whether sizes are tiny, to see that it runs and not how fast.
        result: file that holds the results so far, so that a section that is killed leaves them.
        checks, record: rows for the terminal, and all data.
    """

    device: torch.device
    rehearse: bool
    result: Path
    checks: list[Check] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.is_cuda else torch.float32

    def judged(self, passed: bool) -> bool | None:
        """`passed` at full size on a GPU; else None, as speed has no goal there."""
        return passed if self.is_cuda and not self.rehearse else None

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def add(self, name: str, value: str, goal: str = "", passed: bool | None = None) -> None:
        """Report a value; written to `result` at once."""
        self.checks.append(Check(name, value, goal, passed))
        self.save()

    def save(self, **more: Any) -> None:
        """Write the results so far to `result`, whole or not at all."""
        document = {"checks": [asdict(check) for check in self.checks], "record": self.record, **more}
        fresh = self.result.with_suffix(".new")
        fresh.write_text(json.dumps(document))
        os.replace(fresh, self.result)


def median_s(context: Context, run: Callable[[], object], launches: int = 1) -> float:
    """Median time in s of one of the `launches` in `run`, by CUDA events or, on the CPU, by the clock.

    The device is kept busy until all launches are queued, so that the time of launching does not count.
    """
    for _ in range(3):
        run()
    context.synchronize()
    times = []
    for _ in range(2 if context.rehearse else 20):
        if context.is_cuda:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_QUEUEING_CYCLES)
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e-3)
        else:
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
    return statistics.median(times) / launches
