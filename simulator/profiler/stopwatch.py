"""Times a series of calls by operator: in their order between readings of a clock, or each operator as a CUDA graph."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch

from simulator.profiler.samples import Clock

_MOST_RUNS = 32
_QUEUEING_CYCLES = 200_000  # about 0.1 ms: the device is kept busy for so many cycles until a graph is queued


class Call(NamedTuple):
    """One call of an operator, on static tensors."""

    operator: str
    run: Callable[[], object]


MakeCalls = Callable[[], Sequence[Call]]
"""Makes the calls of one run. Every run gets calls of its own, since attention backends cache what they derive from a
step's metadata."""


class Stopwatch(Protocol):
    def time(self, make_calls: MakeCalls, at_least_s: float) -> dict[str, list[float]]:
        """Run the calls once to warm up, and then once or more until `at_least_s` seconds have passed.

        Returns: per operator one time per run, the mean over its calls, in microseconds.
        """


class Undisturbed:
    """Collects times apart from those during which the kernel gave the processor to another process.

    Otherwise the load of a shared machine would be in the times of long operators more than in those of short ones. If
    every time was disturbed, they all count.
    """

    def __init__(self) -> None:
        self._clean: dict[str, list[float]] = {}
        self._disturbed: dict[str, list[float]] = {}
        self._preemptions = 0

    def begin(self) -> None:
        """Called before each run whose times `add` is given."""
        self._preemptions = _num_preemptions()

    def add(self, times: Mapping[str, float]) -> None:
        kept = self._clean if _num_preemptions() == self._preemptions else self._disturbed
        for name, time_us in times.items():
            kept.setdefault(name, []).append(time_us)

    @property
    def times(self) -> dict[str, list[float]]:
        return self._clean or self._disturbed

    def disturbed(self, name: str) -> list[float]:
        """The times of `name` that do not count."""
        return self._disturbed.get(name, []) if self._clean else []


def _num_preemptions() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class ClockStopwatch:
    """Runs all calls in their order and reads the clock between them: each call finds the caches as in a real step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def time(self, make_calls: MakeCalls, at_least_s: float) -> dict[str, list[float]]:
        self._run(make_calls())
        runs = Undisturbed()
        started = self._clock()
        for _ in range(_MOST_RUNS):
            runs.begin()
            runs.add(self._run(make_calls()))
            if (self._clock() - started) * 1e-9 >= at_least_s:
                break
        return runs.times

    def _run(self, calls: Sequence[Call]) -> dict[str, float]:
        totals: dict[str, int] = {}
        counts: dict[str, int] = {}
        clock = self._clock
        for operator, run in calls:
            started = clock()
            run()
            ended = clock()
            totals[operator] = totals.get(operator, 0) + ended - started
            counts[operator] = counts.get(operator, 0) + 1
        return {operator: total * 1e-3 / counts[operator] for operator, total in totals.items()}


class GraphStopwatch:
    """Captures all calls of an operator in one CUDA graph, so that no launch from the host is timed.

    Between two uses of a weight those of all other layers pass through the device's caches, as in a real step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def time(self, make_calls: MakeCalls, at_least_s: float) -> dict[str, list[float]]:
        calls: dict[str, list[Callable[[], object]]] = {}
        for operator, run in make_calls():
            calls.setdefault(operator, []).append(run)
        share_s = at_least_s / len(calls)
        return {operator: self._time_one(runs, share_s) for operator, runs in calls.items()}

    def _time_one(self, runs: Sequence[Callable[[], object]], at_least_s: float) -> list[float]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for run in runs:
                run()  # compiles
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            for run in runs:
                run()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        times: list[float] = []
        started = time.perf_counter()
        for i in range(1 + _MOST_RUNS):
            torch.cuda._sleep(_QUEUEING_CYCLES)
            events[0].record()
            graph.replay()
            events[1].record()
            events[1].synchronize()
            if i:  # the first replay uploads the graph
                times.append(events[0].elapsed_time(events[1]) * 1e3 / len(runs))
                if time.perf_counter() - started >= at_least_s:
                    break
        return times


def make_stopwatch(device: torch.device, clock: Clock) -> Stopwatch:
    """The stopwatch that suits a device; a GPU is timed by its own events, a CPU by the clock."""
    return GraphStopwatch(device) if device.type == "cuda" else ClockStopwatch(clock)
