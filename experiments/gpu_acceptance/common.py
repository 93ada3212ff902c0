"""Sizes, timing and the form of results, for all sections."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments import ROOT

_QUEUEING_CYCLES = 2_000_000  # cycles of the device: about a millisecond


@dataclass(frozen=True)
class Check:
    """A value and whether it meets its goal; `passed` is None without a goal."""

    name: str
    value: str
    goal: str = ""
    passed: bool | None = None


@dataclass
class Outcome:
    """The results of a section: rows for the terminal, and all data for the record."""

    checks: list[Check] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)


@dataclass
class Context:
    """The device and sizes to measure with; the section `rates` fills `rates` for the sections after it."""

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
        """Seconds until the time limit of the section."""
        return self.deadline - time.monotonic()

    def judged(self, passed: bool) -> bool | None:
        """`passed` at full size on a GPU; else None, as speed has no goal there."""
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
    """Median time in s of one of the `launches` in `run`, by CUDA events or, on the CPU, by the clock.

    The device is kept busy until all launches are queued, so that the time of launching does not count.
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
    """`run` as a CUDA graph, which takes the host hardly any time to launch; `run` itself on the CPU."""
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
