"""One run from configuration to result folder: load the trace, serve it, write the tables, draw the plots."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from rich.console import Console

from engine.core.sequence import Request
from harness.config import RunConfig
from harness.results.environment import environment
from harness.results.files import write_results
from harness.results.metrics import summarize
from harness.results.summary import print_summary
from harness.results.tables import RunResult
from harness.runs.progress import progress_bar
from harness.runs.recorder import Recorder
from harness.runs.simulated import SimulatedEngine
from harness.runs.system import resolve
from harness.workload.arrivals import make_arrivals
from harness.workload.readers import load_trace
from harness.workload.trace import Trace
from simulator.arrivals import Arrivals


class Engine(Protocol):
    """An engine that serves a trace, simulated or real. `run` serves it all; a signal handler may call `stop`."""

    recorder: Recorder
    num_blocks: int

    @property
    def device_name(self) -> str:
        """The hardware that is simulated, or that was measured."""

    def describe(self) -> str:
        """One line on the KV pool."""

    def notes(self) -> list[str]:
        """After the run: lines that a reader of the results must know, such as step times outside a profile."""

    def run(self) -> None: ...

    def stop(self) -> None: ...

    def unfinished(self) -> list[Request]: ...

    def close(self) -> None: ...


class Served(NamedTuple):
    """Result and summary of a served trace; `interrupted` tells whether a signal cut it short."""

    result: RunResult
    summary: dict[str, Any]
    interrupted: bool


def run(config: RunConfig, output_dir: Path) -> dict[str, Any]:
    """Run `config`, leave everything in `output_dir` and return the summary.

    Raises:
        TwinServeError: the trace or the configuration cannot be used; or the engine failed, as in `serve`.
        KeyboardInterrupt: the run was interrupted; its tables up to then have been written, marked incomplete.
    """
    trace = load_trace(config.trace, seed=config.seed, with_times=config.arrival.kind == "trace")
    arrivals = make_arrivals(trace, config.arrival, np.random.default_rng(config.seed))
    console = Console()
    served = serve(config, trace, arrivals, output_dir, console)
    print_summary(served.summary, console)
    console.print(f"results: {output_dir}", highlight=False, soft_wrap=True)
    if served.interrupted:
        raise KeyboardInterrupt
    return served.summary


def serve(config: RunConfig, trace: Trace, arrivals: Arrivals, output_dir: Path, console: Console) -> Served:
    """Serve `trace` and leave everything in `output_dir`; the tables of an interrupted run are marked incomplete.

    Raises:
        TwinServeError: the configuration cannot be used.
        Exception: the engine failed; its tables up to then have been written, marked incomplete. EngineError is a
            failure that a user can cause.
    """
    engine = make_engine(config, trace, arrivals)
    simulated = config.engine.kind == "sim"
    bar = progress_bar(engine.recorder, len(trace.table), simulated=simulated, enabled=config.progress, console=console)
    try:
        console.print(engine.describe(), highlight=False, soft_wrap=True)
        with _on_interrupt(engine.stop) as interrupts:
            started = time.perf_counter()
            failure = None
            try:
                with bar:
                    engine.run()
            except Exception as error:
                failure = error
            is_complete = not interrupts and failure is None
            result = _collect(config, trace, engine, is_complete, time.perf_counter() - started)
            if failure is not None:
                result.meta["notes"].append(f"the run ended early: {failure}")
            summary = _write(config, result, output_dir)
    finally:
        engine.close()
    if failure is not None:
        console.print(f"results until the failure: {output_dir}", highlight=False, soft_wrap=True)
        raise failure
    return Served(result, summary, bool(interrupts))


def make_engine(config: RunConfig, trace: Trace, arrivals: Arrivals) -> Engine:
    """The engine that `config.engine` names, ready to serve `trace`."""
    if config.engine.kind == "sim":
        return SimulatedEngine(resolve(config), trace, arrivals)
    from harness.runs.real import RealEngine, resolve_real  # imported late, as it brings torch

    return RealEngine(resolve_real(config), trace, arrivals)


@contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Iterator[list[int]]:
    """The first Ctrl-C or SIGTERM calls `stop` and is appended to the list; the next one acts as usual.

    So an interrupted run still writes its results, and an interrupt does not stop the writing.
    """
    interrupts: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        restore()
        interrupts.append(number)
        stop()

    for number in before:
        signal.signal(number, handle)
    try:
        yield interrupts
    finally:
        restore()


def _write(config: RunConfig, result: RunResult, output_dir: Path) -> dict[str, Any]:
    """Write tables, summary and, of a complete run, plots; returns the summary."""
    summary = summarize(result, config.metrics)
    write_results(result, summary, output_dir)
    if config.plots and result.complete:
        from harness.plots import write_run_plots  # imported late, as it brings matplotlib

        write_run_plots(result, summary, output_dir)
    return summary


def _collect(config: RunConfig, trace: Trace, engine: Engine, is_complete: bool, wall_s: float) -> RunResult:
    recorded = engine.recorder.tables(trace, engine.unfinished())
    meta = {
        "engine": config.engine.kind,
        "simulated": config.engine.kind == "sim",
        "model": config.model.name,
        "device": engine.device_name,
        "tensor_parallel_size": config.tensor_parallel_size,
        "trace": trace.name,
        "trace_source": trace.source,
        "trace_file": trace.stamp,
        "arrival": config.arrival.kind,
        "policy": config.scheduler.policy,
        "bad_rows": trace.bad_rows,
        "notes": [*trace.notes, *engine.notes()],
        "kv_pool": engine.describe(),
        "wall_time_s": wall_s,
        "run_time_s": engine.recorder.now_ns * 1e-9,
        "config": config.model_dump(mode="json"),
        "environment": environment(),
    }
    return RunResult(
        recorded.requests, recorded.steps, recorded.gaps, engine.num_blocks, config.block_size, is_complete, meta
    )
