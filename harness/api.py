"""The door: `run`, `sweep`, `capacity` and `compare` for Python, which print nothing and leave no file unless asked.

    from harness import run
    run("model=qwen3-8b", "arrival.rate=10", trace=frame).summary["p99_ttft_ms"]

Overrides are those of the command line, which serves through `serve`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from harness.config import RunConfig, parse
from harness.config.quoting import quoted
from harness.config.targets import import_targets
from harness.engines.availability import check_engine
from harness.errors import ConfigError, TwinServeError
from harness.record.progress_bar import UNWATCHED, Watch
from harness.results.stored.inputs import input_digests
from harness.sinks.sending import check_sinks, send_run
from harness.studies.outcome import Given, Run, with_table, write_settings
from harness.studies.run import Write, nowhere, serve_trace

if TYPE_CHECKING:
    import pandas as pd

    from harness.studies.comparison.compared import ComparedRuns
    from harness.studies.found_capacity import FoundCapacity

TraceLike = Union["pd.DataFrame", str, PathLike[str]]

_IN_MEMORY = "DataFrame"  # in place of the path of a trace
_KINDS = {".csv": "csv", ".jsonl": "jsonl"}


class Asked(NamedTuple):
    """What a call asks for: a configuration, what it was composed from, and the rows of a trace in memory."""

    config: RunConfig
    given: Given
    table: pd.DataFrame | None
    notes: Sequence[str] = ()


def run(*overrides: str, trace: TraceLike | None = None) -> Run:
    """Serve a trace.

    Args:
        overrides: as on the command line: "model=qwen3-8b", "arrival.rate=10".
        trace: a DataFrame with the columns of docs/traces.md, or the path of a file; by default the trace that the
            overrides choose.

    Raises:
        ConfigError: an override cannot be used.
        TraceError: the trace cannot be used.
        EngineError: a real engine failed. Its `partial` is the run up to then.
    """
    asked = _asked("run", *_with_trace(overrides, trace))
    check_sinks(asked.config.sinks)
    outcome = _served(asked)
    if asked.config.sinks.names:
        with TemporaryDirectory(prefix="twinserve-") as folder:
            send_run(asked.config.sinks, outcome.save(Path(folder) / "run"))
    outcome.check()
    return outcome


def sweep(
    *overrides: str,
    over: Mapping[str, Iterable[Any]] | None = None,
    trace: TraceLike | None = None,
    workers: int | None = None,
) -> ComparedRuns:
    """Run all combinations of values.

    Args:
        overrides: those with several values, "block_size=16,64", are varied; the others hold for all runs.
        over: more keys to vary, with their values.
        trace: as of `run`.
        workers: processes; by default one per core, and one for a real engine.

    Raises:
        ConfigError: an override of any run cannot be used; then none was begun. What goes wrong later in a run is in
            `failed` of the result.
    """
    from harness.config.command_lines import importing  # imported late, as a run does without them
    from harness.studies.capacity.worker_pool import (
        ended_on_failure,
        num_workers,
        submit,
    )
    from harness.studies.comparison.compared import ComparedRuns

    lines, table = _with_trace([*overrides, *itertools.starmap(_varied, (over or {}).items())], trace)
    lines, notes = importing.expand(lines)
    jobs = [(name, _asked("run", combination, table, notes)) for name, combination in _combinations(lines)]
    if sinks := next((names for _, asked in jobs if (names := asked.config.sinks.names)), None):
        raise ConfigError(f"sinks={sinks}: read by run(), and by sweeps of the command line")
    workers = num_workers([asked.config for _, asked in jobs], workers)
    with ended_on_failure():
        futures = [(name, submit(workers, partial(_job, asked))) for name, asked in jobs]
        done: dict[str, Run] = {}
        failed: dict[str, TwinServeError] = {}
        for name, future in futures:
            try:
                done[name] = future.result()
                done[name].check()
            except TwinServeError as error:
                failed[name] = error
    return ComparedRuns.of(done, failed)


def capacity(
    *overrides: str, trace: TraceLike | None = None, folder: str | PathLike[str] | None = None
) -> FoundCapacity:
    """Find the highest load at which the SLO holds: `capacity("metrics.slo.ttft_ms=500")`.

    Args:
        overrides, trace: as of `run`.
        folder: keeps the runs of the search, with which a search in the same folder goes on; by default they are
            temporary.

    Raises:
        ConfigError, TraceError: as `run`.
    """
    from harness.studies.capacity.capacity import find  # imported late, as a run does without them
    from harness.studies.found_capacity import FoundCapacity

    kept = TemporaryDirectory(prefix="twinserve-") if folder is None else None
    place = Path(kept.name if kept else fspath(folder or ""))
    lines, table = _with_trace(["task=capacity", *overrides], trace)
    asked = _asked("capacity", lines, table)
    config = asked.config if table is None else with_table(asked.config, table, place)  # for processes that run probes
    check_engine(config.engine.kind)
    write_settings(config, input_digests(config), asked.given, place)
    document = find(config, place, asked.given.overrides)
    return FoundCapacity(document, place, kept)


def compare(*results: Run | str | PathLike[str], baseline: str | int | None = None) -> ComparedRuns:
    """Compare runs, and folders of earlier runs and sweeps.

    Args:
        baseline: what differences are taken from: the label of a configuration, the name of one of its runs, or an
            index.

    Raises:
        ConfigError: a name holds no result, or no configuration is called like the baseline. A folder that is damaged
            is in `failed` of what is returned.
    """
    from harness.studies.comparison.compared import ComparedRuns  # imported late, as a run does without them
    from harness.studies.comparison.folders import expand_results

    if not results:
        raise ConfigError("compare: give runs, or folders of results")
    runs = [result for result in results if isinstance(result, Run)]
    others = [fspath(result) for result in results if not isinstance(result, Run)]
    folders = expand_results(others) if others else []
    return ComparedRuns.of({f"run {i}": run for i, run in enumerate(runs)}, {}, folders, baseline)


def serve(
    config: RunConfig, table: pd.DataFrame | None = None, watch: Watch = UNWATCHED, write: Write = nowhere
) -> Run:
    """Serve the trace of `config`. `failure` of the run says what ended it early; the parameters are as of
    `serve_trace`.

    Raises:
        TwinServeError: the trace or the configuration cannot be used, or memory does not suffice.
    """
    check_engine(config.engine.kind)
    try:
        return serve_trace(config, table, watch, write)
    except MemoryError as error:
        text = f"out of memory, no result was written{': ' if str(error) else ''}{error}"
        raise TwinServeError(f"task={config.task}: {text}") from error


def _served(asked: Asked) -> Run:
    inputs = input_digests(asked.config)
    outcome = serve(asked.config, asked.table)
    summary = {**outcome.summary, "notes": [*outcome.summary["notes"], *asked.notes]}
    return replace(outcome, summary=summary, given=asked.given, inputs=inputs, table=asked.table)


def _job(asked: Asked) -> Run:
    """A run of a sweep, in a worker process, which imports the user's code first. An interrupt starts no other run."""
    import_targets(asked.config.model_dump())
    outcome = _served(asked)
    if isinstance(outcome.failure, KeyboardInterrupt):
        raise outcome.failure
    return outcome


def _with_trace(overrides: Sequence[str], trace: TraceLike | None) -> tuple[list[str], pd.DataFrame | None]:
    """The overrides together with those that choose `trace`, and the rows of `trace` if they are in memory."""
    if odd := [each for each in overrides if not isinstance(each, str)]:
        raise ConfigError(f"{odd[0]!r}: an override is text, such as 'model=qwen3-8b'")
    if trace is None:
        return list(overrides), None
    keys = {text.partition("=")[0] for text in overrides}
    if "trace.path" in keys:
        raise ConfigError("trace.path: given twice, as an override and as the argument trace")
    if not isinstance(trace, str | PathLike):
        if not isinstance(trace, _frame_type()):
            raise ConfigError(f"trace: must be a DataFrame or the path of a file, not {type(trace).__name__}")
        if "trace" in keys:
            raise ConfigError("trace: given twice, as an override and as a DataFrame")
        return ["trace=jsonl", f"trace.path={_IN_MEMORY}", *overrides], trace
    path = Path(trace)
    kind = [] if "trace" in keys else [f"trace={_KINDS[path.suffix]}"] if path.suffix in _KINDS else None
    if kind is None:
        raise ConfigError(
            f"trace={str(trace)!r}: choose its reader, such as 'trace=mooncake'; .csv and .jsonl need none"
        )
    return [*kind, f"trace.path={quoted(path)}", *overrides], None


def _frame_type() -> type:
    from pandas import DataFrame  # imported late, as the command line does without it

    return DataFrame


def _asked(task: str, overrides: Sequence[str], table: pd.DataFrame | None, notes: Sequence[str] = ()) -> Asked:
    """The configuration that overrides make for `task`; raises ConfigError."""
    from harness.config.command_lines import importing  # imported late, as the command line may know without Hydra
    from harness.config.composing.composer import compose, drop_hydra
    from harness.config.composing.overrides import check_single

    lines, more_notes = importing.expand(overrides)
    with _refused_in_one_line(lines):
        check_single(lines)
        composed = compose(lines)
        given = Given(tuple(composed.hydra.overrides.task), dict(composed.hydra.runtime.choices))
        config = parse(drop_hydra(composed))
    if config.task != task:
        raise ConfigError(f"task={config.task}: harness.api has run (task=run), sweep, capacity and compare")
    return Asked(config, given, table, [*notes, *more_notes])


def _varied(key: str, values: Iterable[Any]) -> str:
    """The override that varies a key."""
    texts = [values] if isinstance(values, str) else [quoted(value) for value in values]
    if not texts:
        raise ConfigError(f"{key}: no values to vary it over")
    return f"{key}={','.join(texts)}"


def _combinations(overrides: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The name and the overrides of each run of a sweep, the last key varied first."""
    from hydra.core.override_parser.overrides_parser import OverridesParser  # imported late, as above
    from omegaconf import OmegaConf

    from harness.config.composing.composer import compose
    from harness.studies.sweeps.naming import job_folder

    with _refused_in_one_line(overrides):
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        odd = [each for each in parsed if each.is_sweep_override() and not each.is_discrete_sweep()]
        if odd:
            raise ConfigError(f"{odd[0].input_line}: must be a list of values")
        fixed = [str(each.input_line) for each in parsed if not each.is_sweep_override()]
        preset = OmegaConf.select(compose(fixed).hydra, "sweeper.params") or {}
        given = {each.get_key_element() for each in parsed}
        lines = [*(f"{key}={values}" for key, values in preset.items() if key not in given), *overrides]
        every = OverridesParser.create().parse_overrides(lines)
        varied = {
            each.get_key_element(): list(each.sweep_string_iterator()) for each in every if each.is_sweep_override()
        }
    for values in itertools.product(*varied.values()):
        chosen = [f"{key}={value}" for key, value in zip(varied, values, strict=True)]
        yield job_folder(",".join(chosen)), [*fixed, *chosen]


@contextmanager
def _refused_in_one_line(overrides: Sequence[str]) -> Iterator[None]:
    """What Hydra raises, as a ConfigError."""
    from harness.config.composing.overrides import explain_refusal, is_refusal

    try:
        yield
    except Exception as error:
        if isinstance(error, TwinServeError) or not is_refusal(error):
            raise
        raise ConfigError(explain_refusal(error, overrides)) from error
