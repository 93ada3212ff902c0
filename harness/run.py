"""One run from configuration to result folder: load the trace, serve it, write the tables, draw the plots."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console

from engine.sequence import Sequence
from harness.arrivals import ArrivalProcess, make_arrivals
from harness.config import RunConfig
from harness.metrics import summarize
from harness.progress import progress_bar
from harness.readers import load_trace
from harness.recorder import Recorder
from harness.report import print_summary
from harness.results import RunResult, environment, write_results
from harness.simulated import SimulatedEngine
from harness.trace import Trace


class Engine(Protocol):
    """What serves a trace: simulated or real. `run` serves it all, `stop` ends that early, from a signal handler."""

    recorder: Recorder
    num_blocks: int

    def describe(self) -> str:
        """One line on the KV pool."""

    def run(self) -> None: ...

    def stop(self) -> None: ...

    def unfinished(self) -> list[Sequence]: ...

    def close(self) -> None: ...


def run(config: RunConfig, output_dir: Path) -> dict[str, Any]:
    """Run `config`, leave everything in `output_dir` and return the summary.

    Raises:
        TwinServeError: the trace or the configuration cannot be used.
        KeyboardInterrupt: the run was interrupted; what it had recorded has been written, marked incomplete.
    """
    console = Console()
    trace = load_trace(config.trace, seed=config.seed)
    arrivals = make_arrivals(trace, config.arrival, np.random.default_rng(config.seed))
    engine = make_engine(config, trace, arrivals)
    try:
        console.print(engine.describe(), highlight=False, soft_wrap=True)
        started = time.perf_counter()
        with progress_bar(engine.recorder, len(trace.table), enabled=config.progress, console=console):
            interrupted = serve(engine)
        result = _collect(config, trace, engine, interrupted, time.perf_counter() - started)
    finally:
        engine.close()
    summary = summarize(result, config.metrics)
    write_results(result, summary, output_dir)
    if config.plots and not interrupted:
        from harness.plots import write_run_plots  # imported late, as it brings matplotlib

        write_run_plots(result, summary, output_dir)
    print_summary(summary, console)
    console.print(f"results: {output_dir}", highlight=False, soft_wrap=True)
    if interrupted:
        raise KeyboardInterrupt
    return summary


def make_engine(config: RunConfig, trace: Trace, arrivals: ArrivalProcess) -> Engine:
    """The engine that `config.engine` names, ready to serve `trace`."""
    return SimulatedEngine(config, trace, arrivals)


def serve(engine: Engine) -> bool:
    """Run to the end, or to the end of the step in which an interrupt came; returns whether one came."""
    interrupts: list[int] = []

    def stop() -> None:
        interrupts.append(1)
        engine.stop()

    with _on_interrupt(stop):
        engine.run()
    return bool(interrupts)


@contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM calls `stop`; the next one acts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        restore()
        stop()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


def _collect(config: RunConfig, trace: Trace, engine: Engine, interrupted: bool, wall_s: float) -> RunResult:
    recorded = engine.recorder.tables(trace, engine.unfinished())
    meta = {
        "engine": config.engine.kind,
        "simulated": config.engine.kind == "sim",
        "model": config.model.name,
        "device": config.device.name,
        "tensor_parallel_size": config.tensor_parallel_size,
        "trace": trace.name,
        "trace_source": trace.source,
        "arrival": config.arrival.kind,
        "policy": config.scheduler.policy,
        "bad_rows": trace.bad_rows,
        "notes": list(trace.notes),
        "kv_pool": engine.describe(),
        "wall_time_s": wall_s,
        "run_time_s": engine.recorder.now_ns * 1e-9,
        "config": config.model_dump(mode="json"),
        "environment": environment(),
    }
    return RunResult(
        recorded.requests, recorded.steps, recorded.gaps, engine.num_blocks, config.block_size, not interrupted, meta
    )
