"""One run from configuration to result folder: load the trace, serve it, write the tables, draw the plots."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simpy
from rich.console import Console

from engine.block_manager import BlockManager
from engine.policy import POLICIES
from engine.scheduler import Scheduler
from harness.arrivals import ArrivalProcess, make_arrivals
from harness.config import RunConfig
from harness.content import sequence_factory
from harness.errors import ConfigError
from harness.metrics import summarize
from harness.progress import progress_bar
from harness.readers import load_trace
from harness.recorder import Recorder
from harness.report import print_summary
from harness.results import RunResult, environment, write_results
from harness.trace import Trace
from simulator.cost import CostModel
from simulator.hardware import Device, DeviceTooSmallError, KVPool, ModelShape, size_kv_pool
from simulator.replica import Replica
from simulator.roofline import RooflineCost


@dataclass(frozen=True)
class Simulation:
    """A run set up and ready to go."""

    env: simpy.Environment
    scheduler: Scheduler
    replica: Replica
    recorder: Recorder


def run(config: RunConfig, output_dir: Path) -> dict[str, Any]:
    """Run `config`, leave everything in `output_dir` and return the summary.

    Raises:
        TwinServeError: the trace or the configuration cannot be used.
        KeyboardInterrupt: the run was interrupted; what it had recorded has been written, marked incomplete.
    """
    console = Console()
    trace = load_trace(config.trace, seed=config.seed)
    arrivals = make_arrivals(trace, config.arrival, np.random.default_rng(config.seed))
    pool = kv_pool(config)
    console.print(pool.describe(), highlight=False, soft_wrap=True)
    simulation = build_simulation(config, trace, arrivals, pool.num_blocks)
    started = time.perf_counter()
    with progress_bar(simulation.recorder, len(trace.table), enabled=config.progress, console=console):
        interrupted = serve(simulation)
    wall_s = time.perf_counter() - started
    result = _collect(config, trace, pool, simulation, interrupted, wall_s)
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


def kv_pool(config: RunConfig) -> KVPool:
    """The KV pool of one rank: as configured, or what the device's memory leaves.

    Raises:
        ConfigError: the model does not fit.
    """
    model = model_shape(config)
    if config.num_blocks is not None:
        block_bytes = config.block_size * model.kv_bytes_per_token(config.tensor_parallel_size)
        return KVPool(config.num_blocks, config.block_size, block_bytes)
    try:
        return size_kv_pool(
            model,
            device(config),
            block_size=config.block_size,
            tensor_parallel_size=config.tensor_parallel_size,
            gpu_memory_utilization=config.gpu_memory_utilization,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
        )
    except DeviceTooSmallError as error:
        raise ConfigError(f"device={config.device.name}: {error}") from error


def build_simulation(config: RunConfig, trace: Trace, arrivals: ArrivalProcess, num_blocks: int) -> Simulation:
    """Put the scheduling core, a cost model and the arrivals together around a SimPy environment."""
    env = simpy.Environment(initial_time=0)
    caching = config.scheduler.enable_prefix_caching
    blocks = BlockManager(num_blocks, config.block_size, enable_prefix_caching=caching)
    scheduler = Scheduler(
        blocks,
        POLICIES[config.scheduler.policy](),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len or config.model.max_position_embeddings,
        watermark=config.scheduler.watermark,
    )
    recorder = Recorder()
    replica = Replica(
        env,
        scheduler,
        cost_model(config),
        arrivals,
        sequence_factory(trace, config.block_size),
        recorder,
        compress=config.engine.kind == "sim" and config.engine.compress,
    )
    return Simulation(env, scheduler, replica, recorder)


def cost_model(config: RunConfig) -> CostModel:
    """The cost model that `config.cost` names.

    Raises:
        ConfigError: it is not available.
    """
    if config.cost.kind == "profiled":
        raise ConfigError("cost=profiled: no profile format is supported yet; use cost=roofline")
    return RooflineCost(model_shape(config), device(config), config.tensor_parallel_size)


def model_shape(config: RunConfig) -> ModelShape:
    fields = config.model.model_dump() | {"dtype_bytes": config.model.dtype_bytes}
    return ModelShape(**fields | {"dtype": "fp32" if config.model.dtype == "float32" else "bf16"})


def device(config: RunConfig) -> Device:
    return Device(**config.device.model_dump())


def serve(simulation: Simulation) -> bool:
    """Run to the end, or to the end of the step in which an interrupt came; returns whether one came."""
    interrupts: list[int] = []

    def stop() -> None:
        interrupts.append(1)
        simulation.replica.stop()

    # A run makes no reference cycles, and looking for them among a million requests takes a tenth of its time.
    gc.disable()
    try:
        with _on_interrupt(stop):
            simulation.env.run()
    finally:
        gc.enable()
    return bool(interrupts)


@contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM calls `stop`; the next one acts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: object) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        stop()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _collect(
    config: RunConfig, trace: Trace, pool: KVPool, simulation: Simulation, interrupted: bool, wall_s: float
) -> RunResult:
    recorded = simulation.recorder.tables(trace, simulation.scheduler.unfinished)
    meta = {
        "engine": config.engine.kind,
        "simulated": True,
        "model": config.model.name,
        "device": config.device.name,
        "tensor_parallel_size": config.tensor_parallel_size,
        "trace": trace.name,
        "trace_source": trace.source,
        "arrival": config.arrival.kind,
        "policy": config.scheduler.policy,
        "bad_rows": trace.bad_rows,
        "notes": list(trace.notes),
        "kv_pool": pool.describe(),
        "wall_time_s": wall_s,
        "simulated_time_s": simulation.recorder.now_ns * 1e-9,
        "config": config.model_dump(mode="json"),
        "environment": environment(),
    }
    return RunResult(
        recorded.requests, recorded.steps, recorded.gaps, pool.num_blocks, config.block_size, not interrupted, meta
    )
