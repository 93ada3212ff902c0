"""task=validate: simulates a measured run and reports the errors of the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from engine.documents import user_path
from harness.config import RunConfig
from harness.config.schema.tasks.validation import Part
from harness.engines.resolving.system import resolve
from harness.errors import ConfigError
from harness.figures import write_validation_charts
from harness.measured import MeasuredRun, load_measured
from harness.record.progress_bar import Terminal
from harness.results.tables import RunResult
from harness.studies.run import serve
from harness.validation.aggregates import has_aggregates_only, validate_aggregates
from harness.validation.closed_loops import KIND, validate_rows
from harness.validation.error_tables import print_validation, write_validation
from harness.validation.settings import different_device, different_settings
from harness.validation.side_by_side import compare
from harness.validation.simulated_run import different_pool, load_run, priced_at_medians, simulation_config
from harness.validation.step_errors import StepReplay, replay_steps
from harness.workload.arrivals import make_arrivals
from simulator.calibration import Calibration
from simulator.costs.cost import CostModel
from simulator.costs.profiled import ProfiledCost

_MAY_DIFFER_IN_REPEATS = {"progress", "plots", "results"}


def validate(config: RunConfig, output_dir: Path) -> dict[str, Any]:
    """Compare as `config.validation` says, write everything to `output_dir` and return the content of validation.json.

    Raises:
        TwinServeError: the measured run or the configuration cannot be used.
        EngineError, KeyboardInterrupt: the simulation could not go on, or was interrupted.
    """
    console = Console()
    settings = config.validation
    if settings.measured and settings.measured.startswith(f"{KIND}:"):
        return validate_rows(config, output_dir, console)
    kind, _, path = (settings.measured or "").partition(":")
    if has_aggregates_only(kind, user_path(path)):
        return validate_aggregates(config, kind, user_path(path), output_dir, console)
    run = load_run(settings)
    repeats = [load_measured(name, settings.workload, settings.columns) for name in settings.repeats]
    for repeat in repeats:
        _check_repeat(run, repeat)
    pool_warnings = different_pool(config, run)
    config = simulation_config(config, run)
    system = resolve(config)
    arrivals = make_arrivals(run.trace, config.arrival, np.random.default_rng(config.seed))
    served = serve(config, run.trace, arrivals, Terminal(config, console), lambda run: run.write(output_dir))
    served.check(output_dir)
    priced = resolve(priced_at_medians(config)).cost_model() if run.own else None
    steps = [] if priced is None else _replays(config, [run, *repeats], priced)
    warnings = [*run.notes, *served.result.meta["notes"], *different_settings(run.settings, config), *pool_warnings]
    warnings += _profile_warnings(run, priced)
    warnings += _service_warnings(run, served.result)
    warnings += _fit_warnings(run, system.calibration, settings.score)
    validation = compare(config, run, repeats, served.result, steps, system, warnings)
    document = write_validation(validation, output_dir)
    if config.plots:
        write_validation_charts(output_dir, output_dir, config.plot)
    print_validation(validation, console)
    console.print(f"results: {output_dir}", highlight=False, soft_wrap=True)
    return document


def _replays(config: RunConfig, runs: list[MeasuredRun], priced: CostModel) -> list[StepReplay]:
    score = config.validation.score
    return [replay_steps(run, resolve(simulation_config(config, run)), priced, score) for run in runs]


def _profile_warnings(run: MeasuredRun, priced: CostModel | None) -> list[str]:
    if run.own is None or not isinstance(priced, ProfiledCost):
        return []
    return different_device(run.own.result.meta.get("device"), priced.profile)


def _service_warnings(run: MeasuredRun, result: RunResult) -> list[str]:
    """Requests that the simulation served less than the measured run did."""
    warnings = []
    refused = int((result.requests["status"] != "finished").sum())
    if refused:
        warnings.append(f"{refused} requests that were served in the measured run were refused in the simulation")
    short = int((result.requests["num_output_tokens"] < result.requests["num_requested_tokens"]).sum()) - refused
    if short > 0 and run.own is None:
        warnings.append(f"{short} requests were cut short in the simulation, at max_model_len or the pool's size")
    return warnings


def _fit_warnings(run: MeasuredRun, fitted: Calibration | None, score: Part) -> list[str]:
    if fitted is None or not fitted.was_fitted_on_another_run(run.requests_sha256(), run.data_sha256(), score):
        return []
    same = "of the same lengths in the same order"
    return [f"{fitted.path} was fitted on another run of the requests that are scored here: {same}"]


def _check_repeat(run: MeasuredRun, repeat: MeasuredRun) -> None:
    """Raises ConfigError if `repeat` served other requests than `run`, or had another configuration."""
    lengths = ["num_prompt_tokens", "num_requested_tokens"]
    if not run.requests[lengths].equals(repeat.requests[lengths]):
        raise ConfigError(f"validation.repeats: {repeat.source} did not serve the requests of {run.source}")
    if run.own is None or repeat.own is None:
        same = run.kind == repeat.kind and run.settings == repeat.settings
    else:
        one, other = (each.config.model_dump(exclude=_MAY_DIFFER_IN_REPEATS) for each in (run.own, repeat.own))
        same = one == other
    if not same:
        raise ConfigError(f"validation.repeats: {repeat.source} has another configuration than {run.source}")
