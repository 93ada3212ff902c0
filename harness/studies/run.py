"""One run from its configuration to its result: load the trace, serve it, collect what was recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

import numpy as np
import pandas as pd

from engine.core.sequence import Request
from harness import interrupts
from harness.config import RunConfig
from harness.config.command_lines.serving import fleet_command
from harness.config.command_lines.vllm.serve_line import longest_that_fits
from harness.config.huggingface_keys import ignored_notes
from harness.config.pools import Pool, pools_of
from harness.engines.host_memory import check_memory, kept_for_tables
from harness.engines.resolving.fleet import resolve_fleet
from harness.engines.resolving.known_error import load_of
from harness.engines.simulated import SimulatedEngine
from harness.errors import ConfigError, EngineError, TwinServeError
from harness.record.progress_bar import UNWATCHED, Watch
from harness.record.record import Record
from harness.record.request_times import seconds
from harness.results.metrics import left_out_text, summarize, window_of
from harness.results.stored.environment import environment
from harness.results.tables import RunResult
from harness.studies.auto_length import decide, first_requests, is_open, reporting_the_metric, with_most_requests
from harness.studies.outcome import Run
from harness.workload.arrivals import OpenLoop, make_arrivals
from harness.workload.expectation import expected_lengths
from harness.workload.readers import load_trace
from harness.workload.trace import Trace
from simulator.arrivals import Arrivals

Write = Callable[[Run], None]


class Engine(Protocol):
    """An engine that serves a trace, simulated or real. `run` serves it all; a signal handler may call `stop`.

    Where `run` raises, `unfinished` still tells which requests each server has left: what was recorded is written.
    """

    block_bytes: int

    @property
    def record(self) -> Record:
        """What was recorded so far."""

    @property
    def pool_blocks(self) -> Sequence[int]:
        """KV blocks of a server of each pool; empty where they are not known."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """After the run: what the results say in place of what the configuration says."""

    @property
    def num_blocks(self) -> int | None:
        """Of the first server; None where it is not known."""

    @property
    def device_name(self) -> str:
        """The hardware that is simulated, or that was measured."""

    def describe(self) -> str:
        """One line on the KV pool."""

    def step_times_from(self) -> str:
        """One line on where the times of steps come from."""

    def cost_model_text(self, load: str) -> str:
        """The cost model and its known error under such a load, for the summary."""

    def notes(self) -> list[str]:
        """After the run: lines that a reader of the results must know, such as step times outside a profile."""

    def run(self) -> None: ...

    def stop(self) -> None: ...

    def unfinished(self) -> Sequence[Sequence[Request]]: ...

    def close(self) -> None: ...


def nowhere(run: Run) -> None:
    """Writes nothing."""


def serve_trace(
    config: RunConfig, table: pd.DataFrame | None = None, watch: Watch = UNWATCHED, write: Write = nowhere
) -> Run:
    """Serve the trace of `config`, as long a part of it as it asks for.

    Args:
        table: the rows of the trace, where they are in memory and not in its file.
        watch: who is told how the run goes.
        write: called with the run once it has ended, early or not, while signals are noted and interrupt nothing.

    Raises:
        TwinServeError: the trace or the configuration cannot be used.
    """
    if is_open(config):
        return _serve_until_known(config, table, watch, write)
    trace = _loaded(config, table)
    arrivals = _arrivals(config, trace)
    _check_window(config, arrivals)
    return serve(config, trace, arrivals, watch, write)


def _serve_until_known(config: RunConfig, table: pd.DataFrame | None, watch: Watch, write: Write) -> Run:
    """Ever longer runs of the same draws, until one knows its metric well enough; that one is written and returned."""
    whole = _loaded(with_most_requests(config), table)
    _check_window(config, _arrivals(config, whole))
    part = reporting_the_metric(config)
    last: list[Run] = []
    for trace in first_requests(whole):
        is_all = len(trace.table) == len(whole.table)

        def end(run: Run, is_all: bool = is_all) -> None:
            decision = decide(run.summary, config.metrics.interval)
            if decision.is_enough or run.failure is not None or is_all:
                last.append(replace(run, config=config))
                write(last[0])
            watch.tell(decision.reason if last else f"{decision.reason}; going on")

        run = serve(part, trace, _arrivals(config, trace), watch, end)
        if last:
            return replace(last[0], failure=run.failure)
    raise AssertionError("the last part is the whole trace")


def _arrivals(config: RunConfig, trace: Trace) -> Arrivals:
    return make_arrivals(trace, config.arrival, np.random.default_rng(config.seed))


def _loaded(config: RunConfig, table: pd.DataFrame | None) -> Trace:
    drawn = getattr(config.trace, "num_requests", None)
    if drawn is not None:
        check_memory(min(drawn, getattr(config.trace, "limit", None) or drawn), 0, config.max_num_seqs)
    return load_trace(config.trace, seed=config.seed, with_times=config.arrival.kind == "trace", table=table)


def serve(config: RunConfig, trace: Trace, arrivals: Arrivals, watch: Watch = UNWATCHED, write: Write = nowhere) -> Run:
    """Serve `trace`; `watch` and `write` are as of `serve_trace`.

    Raises:
        TwinServeError: the configuration cannot be used.
    """
    check_memory(len(trace.table), int(trace.table["num_output_tokens"].sum()), config.max_num_seqs)
    engine = make_engine(config, trace, arrivals)
    if config.perfetto or (config.sinks.otel and config.engine.kind != "openai"):
        engine.record.record_spans()
    try:
        watching = watch.serving(engine.record, len(trace.table), (engine.describe(), engine.step_times_from()))
        with interrupts.noted(engine.stop) as signals:
            started = time.perf_counter()
            with watching, kept_for_tables():
                failure = _failure_of(engine)
            if signals and failure is None:
                failure = KeyboardInterrupt()
            result = collect(config, trace, arrivals, engine, failure, time.perf_counter() - started)
            run = Run(config, result, summarize(result, config.metrics), failure)
            write(run)
    finally:
        engine.close()
    if signals and failure is None:  # it came while the results were written
        return replace(run, failure=KeyboardInterrupt())
    return run


def _check_window(config: RunConfig, arrivals: Arrivals) -> None:
    """Raises ConfigError where it is known beforehand that no request would count."""
    if isinstance(arrivals, OpenLoop) and (config.metrics.warmup or config.metrics.drain):
        times_s = seconds(arrivals.times_ns)
        if not window_of(times_s, config.metrics).contains(times_s).any():
            raise ConfigError(f"{left_out_text(config.metrics)}, {times_s[-1] - times_s[0]:.3g} s")


def _failure_of(engine: Engine) -> BaseException | None:
    """Let the engine serve; returns what kept it from serving all. Errors of the configuration are raised."""
    try:
        engine.run()
    except (EngineError, KeyboardInterrupt) as error:  # a second Ctrl-C ends the wait for a hanging worker
        return error
    except TwinServeError:
        raise
    except MemoryError:
        return EngineError("out of memory")
    except Exception as error:
        return error
    return None


def _reason(failure: BaseException | None) -> str | None:
    """Why a run ended early, in one line for the summary; None for a complete run."""
    match failure:
        case None:
            return None
        case KeyboardInterrupt():
            return "interrupted"
        case EngineError():
            return str(failure)
    return " ".join(f"{type(failure).__name__}: {failure}".split())


def make_engine(config: RunConfig, trace: Trace, arrivals: Arrivals) -> Engine:
    """The engine that `config.engine` names, ready to serve `trace`."""
    if config.engine.kind == "sim":
        return SimulatedEngine(resolve_fleet(config), trace, arrivals)
    if config.engine.kind == "openai":
        with interrupts.held():
            from harness.engines.endpoint.engine import EndpointEngine  # imported late, as it brings aiohttp

        return EndpointEngine(config, trace, arrivals)
    with interrupts.held():
        from harness.engines.real import RealEngine, resolve_real  # imported late, as it brings torch
    return RealEngine(resolve_real(config), trace, arrivals)


def collect(
    config: RunConfig,
    trace: Trace,
    arrivals: Arrivals,
    engine: Engine,
    failure: BaseException | None,
    wall_s: float,
) -> RunResult:
    recorded = engine.record.tables(trace, engine.unfinished())
    pools, smallest = pools_of(config), min(engine.pool_blocks, default=None)
    meta = {
        "engine": config.engine.kind,
        "simulated": config.engine.kind == "sim",
        "model": config.model.name,
        "quantization": config.weight_format,
        "kv_cache_dtype": config.kv_cache_dtype,
        "device": engine.device_name,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "num_servers": config.num_servers,
        "num_gpus": config.num_gpus,
        "router": config.router.rule if config.num_servers > 1 else None,
        "pools": _described(pools, engine.pool_blocks) if len(pools) > 1 else None,
        "trace": trace.name,
        "trace_source": trace.source,
        "trace_file": trace.stamp,
        "prompts_share": trace.prompts_share,
        "expected_lengths": expected_lengths(config.trace, longest_that_fits(config, smallest)),
        "arrival": config.arrival.kind,
        "open_loop": isinstance(arrivals, OpenLoop),
        "policy": config.scheduler.policy,
        "allocator": config.allocator.kind,
        "ended_early": _reason(failure),
        "bad_rows": trace.bad_rows,
        "notes": [
            *trace.notes,
            *ignored_notes(config.model.ignored_keys, has_tower=config.model.tower_parameters > 0),
            *_pool_notes(config, smallest),
            *engine.notes(),
        ],
        "vllm_command": fleet_command(pools, engine.pool_blocks) if engine.pool_blocks else None,
        "kv_pool": engine.describe(),
        "kv_block_bytes": engine.block_bytes,
        "cost_source": engine.step_times_from(),
        "cost_model": engine.cost_model_text(load_of(config.arrival.kind)),
        "wall_time_s": wall_s,
        "run_time_s": engine.record.now_ns * 1e-9,
        "config": config.model_dump(mode="json"),
        "environment": _environment(),
        **engine.meta,
    }
    block_size = meta.pop("block_size", config.block_size)
    return RunResult(
        recorded.requests, recorded.steps, recorded.gaps, engine.num_blocks, block_size, failure is None, meta,
        recorded.spans, recorded.itls,
    )  # fmt: skip


def _described(pools: Sequence[Pool], pool_blocks: Sequence[int]) -> list[dict[str, Any]]:
    """For the summary, of each pool what its servers are."""
    found, first = [], 0
    for (role, config), num_blocks in zip(pools, pool_blocks, strict=True):
        found.append(
            {
                "role": role,
                "servers": [*range(first, first + config.num_servers)],
                "device": config.device.name,
                "tensor_parallel_size": config.tensor_parallel_size,
                "pipeline_parallel_size": config.pipeline_parallel_size,
                "num_gpus": config.num_gpus,
                "max_num_seqs": config.max_num_seqs,
                "num_blocks": num_blocks,
                "plans_ahead": config.scheduler.async_scheduling,
            }
        )
        first += config.num_servers
    return found


@cache
def _environment() -> dict[str, Any]:
    """Told once, as a process that serves many runs stays what it is; git takes longer than a short simulation."""
    return environment()


def _pool_notes(config: RunConfig, num_blocks: int | None) -> list[str]:
    """What is said of a pool, or of steps, that do not hold the longest sequence that is allowed."""
    longest, fits = longest_that_fits(config, None), longest_that_fits(config, num_blocks)
    notes, most = [], config.max_num_batched_tokens
    if fits < longest:
        notes.append(
            f"the KV pool holds {fits:,} tokens, less than one request of max_model_len={longest}, with which vLLM "
            f"refuses to start; max_model_len={fits} fits"
        )
    if config.scheduler.policy == "admission_order" and not config.scheduler.enable_chunked_prefill and most < longest:
        notes.append(
            f"prompts are not cut, and max_num_batched_tokens={most} is less than max_model_len={longest}, with which "
            f"vLLM refuses to start; a prompt of more than {most} tokens is rejected"
        )
    return notes
