"""A measured run beside its simulation: the tables, errors and step replays that reports and figures show."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.config import RunConfig
from harness.measured import MeasuredRun
from harness.measured.measured_run import with_latencies
from harness.measured.own_run import SAMPLES, sample_steps
from harness.results.tables import Floats, Ints, RunResult
from harness.validation.error_statistics import (
    PARTS,
    align,
    comparison,
    is_in_part,
    part_of,
    statistics,
    with_request_errors,
)
from harness.validation.simulated_run import simulated_requests
from harness.validation.slices import slice_table, with_noise_of_slices
from harness.validation.step_errors import StepReplay
from simulator.calibration import Calibration
from simulator.system import System


@dataclass(frozen=True, eq=False)
class Validation:
    """A measured run beside its simulation.

    Attributes:
        config: the configuration of the simulation.
        cost: the kind of cost model that priced its steps.
        run: the measured run.
        measured, simulated: requests tables as `MeasuredRun.requests`, of the scored part.
        repeats: such tables of the repeats of the measured run.
        errors: as of `comparison`.
        measured_levels, simulated_levels: as `MeasuredRun.series` with num_unfinished, during the scored part.
        levels: as of `align`.
        steps: replays of the run and of its repeats with measured step times; empty for other engines' runs.
        fitted: the calibration that the simulation used; None without one.
        on_fitted_data: whether a constant was fitted to requests that are scored here.
        warnings: what a reader of the comparison must know.
        slices: as of `slice_table`, of what task=observe measured; None of other runs.
    """

    config: RunConfig
    cost: str
    run: MeasuredRun
    measured: pd.DataFrame
    simulated: pd.DataFrame
    repeats: list[pd.DataFrame]
    errors: pd.DataFrame
    measured_levels: pd.DataFrame
    simulated_levels: pd.DataFrame
    levels: dict[str, dict[str, float]]
    steps: list[StepReplay]
    fitted: Calibration | None
    on_fitted_data: bool
    warnings: list[str] = field(default_factory=list)
    slices: pd.DataFrame | None = None

    def subtitle(self) -> str:
        """What was measured, what was simulated, and which requests are scored, on one line."""
        parts = [f"MEASURED: {self.run.engine}, {Path(self.run.source).name}"]
        config = self.config
        parts.append(f"SIMULATED: {config.model.name} on {config.device.name}, cost {self.cost}")
        if config.validation.score != "all":
            parts.append(PARTS[config.validation.score])
        if self.on_fitted_data:
            parts.append("SCORED ON FITTED DATA")
        return " · ".join(parts)


def compare(
    config: RunConfig,
    run: MeasuredRun,
    repeats: list[MeasuredRun],
    result: RunResult,
    steps: list[StepReplay],
    system: System,
    warnings: list[str],
) -> Validation:
    """Compare `run`, with the noise of `repeats`, with the `result` of simulating `config` as `system`."""
    settings, fitted = config.validation, system.calibration
    rows = part_of(run.requests, settings.score)
    whole = [with_latencies(each.requests, settings.latency_from) for each in (run, *repeats)]
    tables = [each.iloc[rows] for each in whole]
    simulated = simulated_requests(
        result.requests, result.steps, settings.latency_from, asynchronous=config.scheduler.async_scheduling
    )
    measured, scored = tables[0], simulated.iloc[rows]
    others = [statistics(table) for table in tables[1:]]
    errors = comparison(statistics(measured), statistics(scored), others)
    errors = with_request_errors(errors, measured, scored, tables[1:])
    slices = slice_table(whole[0], simulated) if "slice" in measured else None
    if slices is not None and not repeats:
        errors = with_noise_of_slices(errors, measured, scored)
    measured_levels = _levels(run)
    if settings.score != "all":
        measured_levels = measured_levels[_is_scored(run, measured_levels["time"], rows)]
    times = measured_levels["time"].to_numpy()
    simulated_levels = sample_steps(result.steps, result.pool_blocks, times)
    simulated_levels = simulated_levels.assign(num_unfinished=_unfinished(simulated, times))
    return Validation(
        config=config,
        cost=system.cost.kind,
        run=run,
        measured=measured,
        simulated=scored,
        repeats=tables[1:],
        errors=errors,
        measured_levels=measured_levels,
        simulated_levels=simulated_levels,
        levels=align(measured_levels, simulated_levels),
        steps=steps,
        fitted=fitted,
        on_fitted_data=fitted is not None
        and any(fitted.was_fitted_on(each.data_sha256(), settings.score) for each in (run, *repeats)),
        warnings=warnings,
        slices=slices,
    )


def _is_scored(run: MeasuredRun, times: pd.Series, rows: Ints) -> npt.NDArray[np.bool_]:
    """At which of the times the scored requests are those that arrive."""
    arrivals = run.requests["arrival_time"].to_numpy()
    first, last = arrivals[rows].min(), arrivals[rows].max()
    return times.between(first, last).to_numpy() & is_in_part(times.to_numpy(), arrivals, rows)


def _levels(run: MeasuredRun) -> pd.DataFrame:
    """The measured state over time, with the number of requests in the engine, which is known of every run."""
    series = run.series
    if series.empty:
        end = float(run.requests["finish_time"].max())
        series = series.reindex(range(SAMPLES)).assign(time=np.linspace(0.0, end, SAMPLES))
    return series.assign(num_unfinished=_unfinished(run.requests, series["time"].to_numpy()))


def _unfinished(requests: pd.DataFrame, times: Floats) -> Ints:
    """How many requests had arrived and not finished at each time."""
    finished = requests[(requests["status"] == "finished").to_numpy()]
    arrived, gone = (np.sort(finished[name].to_numpy()) for name in ("arrival_time", "finish_time"))
    return np.searchsorted(arrived, times, side="right") - np.searchsorted(gone, times, side="right")
