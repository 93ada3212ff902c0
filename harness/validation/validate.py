"""task=validate: simulates a run that was really measured, and says how far off the simulation is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from harness.config import RunConfig, TraceArrival
from harness.config.validation import StepStatistic
from harness.errors import ConfigError, MeasuredRunError
from harness.measured import MeasuredRun, load_measured
from harness.measured.measured_run import queued_times, seen_times, with_latencies
from harness.measured.own_run import SAMPLES, at_step_times, sample_steps, with_retimed
from harness.recovery.run import recovered_steps
from harness.results.tables import RunResult
from harness.runs.fitted import Calibration
from harness.runs.run import serve
from harness.runs.system import at_statistic, resolve
from harness.validation.metrics import align, comparison, part_of, statistics
from harness.validation.report import print_validation, write_validation
from harness.validation.settings import different_device, different_settings
from harness.validation.steps import StepReplay, replay_steps
from harness.workload.arrivals import make_arrivals
from simulator.costs.cost import CostModel
from simulator.costs.profiled import ProfiledCost

_SAME_IN_REPEATS = {"progress", "plots", "results"}


@dataclass(frozen=True, eq=False)
class Validation:
    """A measured run beside its simulation.

    Attributes:
        config: what was simulated.
        measured, simulated: requests tables as in `MeasuredRun.requests`, of the part that is scored.
        repeats: those of the repeats of the measured run, or of it at the step times of one half of its executions and
            of the other.
        errors: as of `comparison`.
        measured_levels, simulated_levels: as `MeasuredRun.series` with num_unfinished, within the part's time.
        levels: as of `align`.
        steps: the replays with measured step times of the run and its repeats; none unless they are our own engine's.
        recovered: `summary` of the steps recovered from another engine's log, if they were asked for.
        fitted: the calibration used, if any; on_fitted_data: whether it was fitted on requests that are scored here.
    """

    config: RunConfig
    run: MeasuredRun
    measured: pd.DataFrame
    simulated: pd.DataFrame
    repeats: list[pd.DataFrame]
    errors: pd.DataFrame
    measured_levels: pd.DataFrame
    simulated_levels: pd.DataFrame
    levels: dict[str, dict[str, float]]
    steps: list[StepReplay]
    recovered: dict[str, Any] | None
    fitted: Calibration | None
    on_fitted_data: bool
    warnings: list[str] = field(default_factory=list)


def validate(config: RunConfig, output_dir: Path) -> dict[str, Any]:
    """Compare as `config.validation` says, leave everything in `output_dir` and return the content of validation.json.

    Raises:
        TwinServeError: the measured run or the configuration cannot be used.
        KeyboardInterrupt: the simulation was interrupted.
    """
    console = Console()
    run = load_run(config)
    repeats = [load_measured(name, config.validation.workload) for name in config.validation.repeats]
    for repeat in repeats:
        _check_repeat(run, repeat)
    config = simulation_config(config, run)
    compared, others = run, repeats
    score, step_times = config.validation.score, config.validation.step_times
    statistic: StepStatistic = "median" if step_times == "measured" else step_times
    priced_config = at_statistic(config, statistic)
    if step_times != "measured":
        config = priced_config
        compared, others = at_step_times(run, statistic)
    fitted = resolve(config).calibration
    recovered = recovered_steps(config, run) if config.validation.recover_steps else None
    arrivals = make_arrivals(compared.trace, config.arrival, np.random.default_rng(config.seed))
    served = serve(config, compared.trace, arrivals, output_dir, console)
    if served.interrupted:
        raise KeyboardInterrupt
    own = [each for each in (run, *repeats) if each.own is not None]
    priced = resolve(priced_config).cost_model() if own else None
    steps = []
    if priced:
        steps = [replay_steps(each, simulation_config(config, each), priced, score, statistic) for each in own]
    warnings = _warnings(config, run, served.result, fitted, priced)
    validation = _compare(config, compared, others, served.result, steps, recovered, fitted, warnings)
    document = write_validation(validation, output_dir)
    if config.plots:
        from harness.plots.validation import write_validation_plots  # imported late, as it brings matplotlib

        write_validation_plots(validation, output_dir)
    print_validation(validation, console)
    console.print(f"results: {output_dir}", highlight=False, soft_wrap=True)
    return document


def load_run(config: RunConfig) -> MeasuredRun:
    """The run that `config.validation` names, with retimed steps if any, checked to have the clock it asks for.

    Raises:
        TwinServeError: it cannot be used.
    """
    settings = config.validation
    assert settings.measured is not None, "the configuration refuses that"
    run = load_measured(settings.measured, settings.workload)
    if settings.latency_from == "queued" and run.requests["queued_time"].isna().any():
        raise MeasuredRunError(f"validation.latency_from=queued: {run.source} does not tell when requests were queued")
    return with_retimed(run, [Path(folder) for folder in settings.retimed]) if settings.retimed else run


def simulation_config(config: RunConfig, run: MeasuredRun) -> RunConfig:
    """What to simulate: `config` with the measured arrivals, or for a run of our own engine that run's configuration
    and KV pool, with cost model and device of `config`."""
    if run.own is None:
        return config.model_copy(update={"arrival": TraceArrival()})
    taken = ("task", "engine", "cost", "device", "validation", "calibration", "progress", "plots")
    update = {name: getattr(config, name) for name in taken}
    update |= {"arrival": TraceArrival(), "num_blocks": run.own.result.num_blocks}
    assert config.engine.kind == "sim"
    shared = ("kv_cache_dtype", "max_lookahead_steps")
    theirs = {"cache_outputs": True, **{name: getattr(run.own.config.engine, name) for name in shared}}
    update["engine"] = config.engine.model_copy(update=theirs)
    return run.own.config.model_copy(update=update)


def simulated_requests(requests: pd.DataFrame, steps: pd.DataFrame, config: RunConfig) -> pd.DataFrame:
    """The requests table of a simulation with `queued_time`, and its latencies counted as `config` asks for.

    With asynchronous scheduling that counts as the end of the step during which a request comes, as vLLM records it,
    though the next step is planned by then.
    """
    arrival = requests["arrival_time"].to_numpy(dtype=np.float64)
    if config.scheduler.async_scheduling:
        queued = queued_times(arrival, steps)
    else:
        queued = seen_times(arrival, requests["finish_time"].to_numpy(dtype=np.float64), steps)
    return with_latencies(requests.assign(queued_time=queued), config.validation.latency_from)


def _compare(
    config: RunConfig,
    run: MeasuredRun,
    repeats: list[MeasuredRun],
    result: RunResult,
    steps: list[StepReplay],
    recovered: dict[str, Any] | None,
    fitted: Calibration | None,
    warnings: list[str],
) -> Validation:
    settings = config.validation
    rows = part_of(len(run.requests), settings.score)
    tables = [with_latencies(each.requests, settings.latency_from).iloc[rows] for each in (run, *repeats)]
    simulated = simulated_requests(result.requests, result.steps, config)
    measured, scored = tables[0], simulated.iloc[rows]
    others = [statistics(table) for table in tables[1:]]
    are_parts = settings.step_times != "measured"
    errors = comparison(statistics(measured), statistics(scored), others, are_parts=are_parts)
    theirs = _levels(run)
    if settings.score != "all":
        theirs = theirs[theirs["time"].between(measured["arrival_time"].min(), measured["arrival_time"].max())]
    times = theirs["time"].to_numpy()
    ours = sample_steps(result.steps, result.num_blocks, times).assign(num_unfinished=_unfinished(simulated, times))
    return Validation(
        config=config,
        run=run,
        measured=measured,
        simulated=scored,
        repeats=tables[1:],
        errors=errors,
        measured_levels=theirs,
        simulated_levels=ours,
        levels=align(theirs, ours),
        steps=steps,
        recovered=recovered,
        fitted=fitted,
        on_fitted_data=fitted is not None
        and any(fitted.was_fitted_on(each.data_sha256(), settings.score) for each in (run, *repeats)),
        warnings=warnings,
    )


def _levels(run: MeasuredRun) -> pd.DataFrame:
    """The measured state over time; of a run that does not tell, at least how many requests were in the engine."""
    series = run.series
    if series.empty:
        end = float(run.requests["finish_time"].max())
        series = series.reindex(range(SAMPLES)).assign(time=np.linspace(0.0, end, SAMPLES))
    return series.assign(num_unfinished=_unfinished(run.requests, series["time"].to_numpy()))


def _unfinished(requests: pd.DataFrame, times: np.ndarray) -> np.ndarray:
    """How many requests had arrived and not finished at each time."""
    finished = requests[(requests["status"] == "finished").to_numpy()]
    arrived, gone = (np.sort(finished[name].to_numpy()) for name in ("arrival_time", "finish_time"))
    return np.searchsorted(arrived, times, side="right") - np.searchsorted(gone, times, side="right")


def _warnings(
    config: RunConfig, run: MeasuredRun, result: RunResult, fitted: Calibration | None, priced: CostModel | None
) -> list[str]:
    warnings = [*run.notes, *result.meta["notes"], *different_settings(run.settings, config)]
    if run.own is not None and isinstance(priced, ProfiledCost):
        warnings += different_device(run.own.result.meta.get("device"), priced.profile)
    if config.validation.step_times == "fastest" and config.cost.kind != "profiled":
        warnings.append(f"cost={config.cost.kind} has a single price for a step, also compared with the fastest")
    refused = int((result.requests["status"] != "finished").sum())
    if refused:
        warnings.append(f"{refused} requests that were served in the measured run were refused in the simulation")
    short = int((result.requests["num_output_tokens"] < result.requests["num_requested_tokens"]).sum()) - refused
    if short > 0 and run.own is None:
        warnings.append(f"{short} requests were cut short in the simulation, at max_model_len or the pool's size")
    score = config.validation.score
    if fitted and fitted.was_fitted_on_another_run(run.requests_sha256(), run.data_sha256(), score):
        warnings.append(
            f"{fitted.path} was fitted on another run of the requests that are scored here: of the same lengths in the "
            "same order"
        )
    return warnings


def _check_repeat(run: MeasuredRun, repeat: MeasuredRun) -> None:
    """Raises ConfigError where a repeat is not a run of the same."""
    lengths = ["num_prompt_tokens", "num_requested_tokens"]
    if not run.requests[lengths].equals(repeat.requests[lengths]):
        raise ConfigError(f"validation.repeats: {repeat.source} did not serve the requests of {run.source}")
    if run.own is None or repeat.own is None:
        same = run.kind == repeat.kind and run.settings == repeat.settings
    else:
        one, other = (each.config.model_dump(exclude=_SAME_IN_REPEATS) for each in (run.own, repeat.own))
        same = one == other
    if not same:
        raise ConfigError(f"validation.repeats: {repeat.source} has another configuration than {run.source}")
