"""What the sections of the GPU acceptance share: sizes, timing, and the form of their results."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
_QUEUEING_CYCLES = 2_000_000  # of the device: about a millisecond


@dataclass(frozen=True)
class Check:
    """A number, and whether it is what it should be; `passed` None where there is no goal."""

    name: str
    value: str
    goal: str = ""
    passed: bool | None = None


@dataclass
class Outcome:
    """What a section found: rows for the terminal, and everything for the record."""

    checks: list[Check] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)


@dataclass
class Context:
    """Where and how large to measure; `rates` is filled by the section of that name for those after it."""

    device: torch.device
    quick: bool
    deadline: float
    rates: dict[str, float] = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.is_cuda else torch.float32

    def seconds_left(self) -> float:
        """Of the section's share of the time."""
        return self.deadline - time.monotonic()

    def judged(self, passed: bool) -> bool | None:
        """Of a goal of speed, which counts at full size on a GPU only."""
        return passed if self.is_cuda and not self.quick else None

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.device)


def shape_of(name: str) -> dict[str, Any]:
    """The fields of `conf/model/<name>.yaml`."""
    yaml: Any = importlib.import_module("yaml")
    shape: dict[str, Any] = yaml.safe_load((ROOT / "conf" / "model" / f"{name}.yaml").read_text())
    return shape


def median_s(context: Context, run: Callable[[], object], repeats: int = 20, launches: int = 1) -> float:
    """Median seconds of one of the `launches` that `run` makes, by CUDA events, or by the clock on the CPU.

    The device is kept busy until all of it is queued, so that how long launching takes is not counted.
    """
    for _ in range(3):
        run()
    context.synchronize()
    times = []
    for _ in range(2 if context.quick else repeats):
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


def captured(context: Context, run: Callable[[], object]) -> Callable[[], object]:
    """`run` as a CUDA graph, so that launching it costs the host nothing; as it is on the CPU."""
    if not context.is_cuda:
        return run
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay
