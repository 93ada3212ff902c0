"""One run from its configuration to its result: load the trace, serve it, collect what was recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from harness import interrupts
from harness.config import RunConfig
from harness.engines.engine import Engine, make_engine
from harness.engines.host_memory import check_memory, kept_for_tables, no_cycles
from harness.errors import ConfigError, EngineError, TwinServeError
from harness.record.progress_bar import UNWATCHED, Watch
from harness.record.request_times import seconds
from harness.results.metrics import left_out_text, summarize, window_of
from harness.studies.auto_length import decide, first_requests, is_open, reporting_the_metric, with_most_requests
from harness.studies.collecting import collect
from harness.studies.outcome import Run
from harness.workload.arrivals import OpenLoop, make_arrivals
from harness.workload.readers import load_trace
from harness.workload.trace import Trace
from simulator.arrivals import Arrivals

if TYPE_CHECKING:
    import pandas as pd

Write = Callable[[Run], None]


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
        is_all = len(trace.rows) == len(whole.rows)

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
    with no_cycles():
        return load_trace(config.trace, seed=config.seed, with_times=config.arrival.kind == "trace", table=table)


def serve(config: RunConfig, trace: Trace, arrivals: Arrivals, watch: Watch = UNWATCHED, write: Write = nowhere) -> Run:
    """Serve `trace`; `watch` and `write` are as of `serve_trace`.

    Raises:
        TwinServeError: the configuration cannot be used.
    """
    check_memory(len(trace.rows), int(trace.rows["num_output_tokens"].sum()), config.max_num_seqs)
    engine = make_engine(config, trace, arrivals)
    if config.perfetto or (config.sinks.otel and config.engine.kind != "openai"):
        engine.record.record_spans()
    try:
        watching = watch.serving(engine.record, len(trace.rows), (engine.describe(), engine.step_times_from()))
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
