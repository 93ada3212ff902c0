"""One run from configuration to result folder: load the trace, serve it, write the tables, draw the plots."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console

from engine.core.sequence import Request
from harness import interrupts
from harness.config import RunConfig
from harness.config.vllm_serve import serve_command
from harness.errors import EngineError, TwinServeError
from harness.results.environment import environment
from harness.results.files import write_results
from harness.results.metrics import summarize
from harness.results.perfetto import write_trace
from harness.results.summary import print_summary
from harness.results.tables import RunResult
from harness.runs.auto_length import decide, first_requests, is_open, reporting_the_metric, with_most_requests
from harness.runs.memory import check_memory, kept_for_tables
from harness.runs.progress import progress_bar
from harness.runs.recorder import Recorder
from harness.runs.simulated import SimulatedEngine
from harness.runs.system import resolve
from harness.workload.arrivals import OpenLoop, make_arrivals
from harness.workload.expectation import expected_lengths
from harness.workload.readers import load_trace
from harness.workload.trace import Trace
from simulator.arrivals import Arrivals
from simulator.beams import RandomParents


class Engine(Protocol):
    """An engine that serves a trace, simulated or real. `run` serves it all; a signal handler may call `stop`.

    Where `run` raises, `unfinished` still tells which requests are left: what was recorded is written.
    """

    recorder: Recorder
    num_blocks: int
    block_bytes: int

    @property
    def device_name(self) -> str:
        """The hardware that is simulated, or that was measured."""

    def describe(self) -> str:
        """One line on the KV pool."""

    def step_times_from(self) -> str:
        """One line on where the times of steps come from."""

    def cost_model_text(self) -> str:
        """The cost model and its known error, for the summary."""

    def notes(self) -> list[str]:
        """After the run: lines that a reader of the results must know, such as step times outside a profile."""

    def run(self) -> None: ...

    def stop(self) -> None: ...

    def unfinished(self) -> list[Request]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Served:
    """Result and summary of a served trace.

    Attributes:
        failure: what ended the run before all was served: KeyboardInterrupt for a signal; None for a complete run.
    """

    result: RunResult
    summary: dict[str, Any]
    failure: BaseException | None

    def check(self, output_dir: Path) -> None:
        """Raises what kept the run from being complete."""
        if isinstance(self.failure, EngineError):
            text = f"{self.failure}; what was recorded until then is in {output_dir}, marked incomplete"
            raise EngineError(text) from self.failure
        if self.failure is not None:
            raise self.failure


def run(config: RunConfig, output_dir: Path) -> dict[str, Any]:
    """Run `config`, leave everything in `output_dir` and return the summary.

    Raises:
        TwinServeError: the trace or the configuration cannot be used.
        EngineError, KeyboardInterrupt: the run could not go on, or was interrupted. As after any exception of the
            engine, the tables up to then have been written, marked incomplete.
    """
    console = Console()
    served = serve_trace(config, output_dir, console)
    print_summary(served.summary, console)
    console.print(f"results: {output_dir}", highlight=False, soft_wrap=True)
    served.check(output_dir)
    return served.summary


def serve_trace(config: RunConfig, output_dir: Path, console: Console) -> Served:
    """Serve the trace of `config`, as long a part of it as it asks for, and leave everything in `output_dir`.

    Raises:
        TwinServeError: the trace or the configuration cannot be used.
    """
    if is_open(config):
        return _serve_until_known(config, output_dir, console)
    return _serve_once(config, output_dir, console)


def _serve_once(config: RunConfig, output_dir: Path, console: Console) -> Served:
    trace = _loaded(config)
    arrivals = make_arrivals(trace, config.arrival, np.random.default_rng(config.seed))
    return serve(config, trace, arrivals, output_dir, console)


def _serve_until_known(config: RunConfig, output_dir: Path, console: Console) -> Served:
    """Ever longer runs of the same draws, until one knows its metric well enough; the last one's results stay."""
    whole = _loaded(with_most_requests(config))
    served: Served | None = None
    for trace in first_requests(whole):
        arrivals = make_arrivals(trace, config.arrival, np.random.default_rng(config.seed))
        part = reporting_the_metric(config)
        served = serve(part, trace, arrivals, output_dir, console)
        decision = decide(served.summary, config.metrics.interval)
        is_last = decision.is_enough or served.failure is not None or len(trace.table) == len(whole.table)
        console.print(decision.reason if is_last else f"{decision.reason}; going on", highlight=False)
        if is_last:
            break
    assert served is not None, "there is always a first part"
    _draw(config, served.result, served.summary, output_dir)
    return served


def _loaded(config: RunConfig) -> Trace:
    drawn = getattr(config.trace, "num_requests", None)
    if drawn is not None:
        check_memory(min(drawn, getattr(config.trace, "limit", None) or drawn), 0, config.max_num_seqs)
    return load_trace(config.trace, seed=config.seed, with_times=config.arrival.kind == "trace")


def serve(config: RunConfig, trace: Trace, arrivals: Arrivals, output_dir: Path, console: Console) -> Served:
    """Serve `trace` and leave everything in `output_dir`; the tables of a run that ended early are marked incomplete.

    Raises:
        TwinServeError: the configuration cannot be used.
    """
    check_memory(len(trace.table), int(trace.table["num_output_tokens"].sum()), config.max_num_seqs)
    engine = make_engine(config, trace, arrivals)
    if config.perfetto:
        engine.recorder.record_spans()
    simulated = config.engine.kind == "sim"
    bar = progress_bar(engine.recorder, len(trace.table), simulated=simulated, enabled=config.progress, console=console)
    try:
        for line in (engine.describe(), engine.step_times_from()) if config.verbose else ():
            console.print(line, highlight=False, soft_wrap=not console.is_terminal)
        with interrupts.noted(engine.stop) as signals:
            started = time.perf_counter()
            with bar, kept_for_tables():
                failure = _failure_of(engine)
            if signals and failure is None:
                failure = KeyboardInterrupt()
            result = collect(config, trace, arrivals, engine, failure, time.perf_counter() - started)
            summary = _write(config, result, output_dir)
    finally:
        engine.close()
    if signals and failure is None:  # it came while the results were written
        failure = KeyboardInterrupt()
    return Served(result, summary, failure)


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
        # A random stream of its own, as that of the trace.
        rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=tuple(b"beams")))
        parents = RandomParents(trace.beam_replacement or 0.0, rng)
        return SimulatedEngine(resolve(config), trace, arrivals, choose_parents=parents)
    with interrupts.held():
        from harness.runs.real import RealEngine, resolve_real  # imported late, as it brings torch
    return RealEngine(resolve_real(config), trace, arrivals)


def _write(config: RunConfig, result: RunResult, output_dir: Path) -> dict[str, Any]:
    """Write tables, summary and, of a complete run, plots; returns the summary."""
    summary = summarize(result, config.metrics)
    write_results(result, summary, output_dir)
    if result.spans is not None:
        write_trace(result, result.spans, output_dir, config.perfetto_window)
    _draw(config, result, summary, output_dir)
    return summary


def _draw(config: RunConfig, result: RunResult, summary: dict[str, Any], output_dir: Path) -> None:
    if config.plots and result.complete:
        from harness.figures import write_run_charts  # imported late, as it brings matplotlib
        from harness.figures.own import write_own_figures

        write_run_charts(result, summary, output_dir, config.plot)
        write_own_figures(config.figures, result, summary, output_dir)


def collect(
    config: RunConfig,
    trace: Trace,
    arrivals: Arrivals,
    engine: Engine,
    failure: BaseException | None,
    wall_s: float,
) -> RunResult:
    recorded = engine.recorder.tables(trace, engine.unfinished())
    meta = {
        "engine": config.engine.kind,
        "simulated": config.engine.kind == "sim",
        "model": config.model.name,
        "quantization": config.weight_format,
        "kv_cache_dtype": config.engine.kv_cache_dtype,
        "device": engine.device_name,
        "tensor_parallel_size": config.tensor_parallel_size,
        "trace": trace.name,
        "trace_source": trace.source,
        "trace_file": trace.stamp,
        "expected_lengths": expected_lengths(config.trace, _length_limit(config, engine)),
        "arrival": config.arrival.kind,
        "open_loop": isinstance(arrivals, OpenLoop),
        "policy": config.scheduler.policy,
        "allocator": config.allocator.kind,
        "ended_early": _reason(failure),
        "bad_rows": trace.bad_rows,
        "notes": [*trace.notes, *engine.notes()],
        "vllm_command": serve_command(config),
        "kv_pool": engine.describe(),
        "kv_block_bytes": engine.block_bytes,
        "cost_source": engine.step_times_from(),
        "cost_model": engine.cost_model_text(),
        "wall_time_s": wall_s,
        "run_time_s": engine.recorder.now_ns * 1e-9,
        "config": config.model_dump(mode="json"),
        "environment": _environment(),
    }
    return RunResult(
        recorded.requests, recorded.steps, recorded.gaps, engine.num_blocks, config.block_size, failure is None, meta,
        recorded.spans,
    )  # fmt: skip


@cache
def _environment() -> dict[str, Any]:
    """Told once, as a process that serves many runs stays what it is; git takes longer than a short simulation."""
    return environment()


def _length_limit(config: RunConfig, engine: Engine) -> int:
    """Tokens of prompt and output together that a sequence may have."""
    longest = config.max_model_len or config.model.max_position_embeddings
    return min(longest, engine.num_blocks * config.block_size)
