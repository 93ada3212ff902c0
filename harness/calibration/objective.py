"""The errors that task=calibrate can minimise, as functions of the constants of a cost model.

statistics  root mean square of the relative errors of TTFT, TPOT and E2EL x mean, median, p90, p95, p99; of a run with
            several loads those of each load, as all together hardly tell how times grow with the batch
steps       for runs of our own engine, whose step times are known: root mean square of the relative errors of
            single steps, weighted by measured time. The measured plans are priced one by one, at medians
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from harness.calibration.minimisation import Residuals
from harness.config import RunConfig
from harness.config.schema.tasks.validation import Part
from harness.engines.resolving.system import resolve
from harness.engines.simulated import SimulatedEngine
from harness.errors import ConfigError
from harness.measured import MeasuredRun
from harness.measured.measured_run import with_latencies
from harness.results.tables import Floats
from harness.validation.error_statistics import part_of, statistics
from harness.validation.simulated_run import priced_at_medians, simulated_requests
from harness.validation.step_errors import StepReplay, replay_steps
from harness.workload.arrivals import make_arrivals
from simulator.fleets.fleet_system import FleetSystem
from simulator.system import System

Misfit = Callable[[Mapping[str, float]], float]
Errors = Callable[[Mapping[str, float]], dict[str, float]]
Latencies = Callable[[Mapping[str, float]], tuple[pd.DataFrame, pd.DataFrame]]
"""The measured requests of the part, and those simulated with some constants."""
_FITTED = ("ttft", "tpot", "e2el")
_TAILS = {"p90": 0.1, "p95": 0.05, "p99": 0.01}
_FEWEST = 10  # requests of a load in a tail that is fitted


class Objective(NamedTuple):
    """What a fit minimises.

    Attributes:
        what: the error in words.
        misfit: the error as a function of the fitted constants.
        residuals: a vector whose norm the misfit is; None where it is none of a few parts.
        errors: its parts by name, as relative errors: of each statistic, or of the steps of each kind.
        num_steps: number of steps over which the error is taken; None where it is not taken over steps.
        warnings: what the user must know.
    """

    what: str
    misfit: Misfit
    errors: Errors
    num_steps: int | None = None
    warnings: tuple[str, ...] = ()
    residuals: Residuals | None = None


def make_objective(config: RunConfig, system: System, run: MeasuredRun) -> Objective:
    """The objective that `calibration.objective` names.

    `system` is what `config` resolves to; constants that are not fitted keep their values of its calibration.

    Raises:
        ConfigError: `run` has no step times, or no step of the part was planned as measured.
    """
    name = config.calibration.objective or ("statistics" if run.own is None else "steps")
    if name == "steps":
        return _of_steps(resolve(priced_at_medians(config)), run, config.calibration.part)
    latencies = _latencies(config, system, run)
    has_loads = "load" in run.requests

    def errors(constants: Mapping[str, float]) -> dict[str, float]:
        return errors_of_statistics(*latencies(constants))

    def residuals(constants: Mapping[str, float]) -> Floats:
        found = of_loads(*latencies(constants)) if has_loads else list(errors(constants).values())
        return np.array(found) / np.sqrt(len(found))

    def misfit(constants: Mapping[str, float]) -> float:
        return float(np.linalg.norm(residuals(constants)))

    of_each = " of each load" if has_loads else ""
    return Objective(f"RMS relative error of TTFT, TPOT, E2EL statistics{of_each}", misfit, errors, residuals=residuals)


def of_loads(measured: pd.DataFrame, simulated: pd.DataFrame) -> list[float]:
    """The errors of the statistics of each `load` of the measured requests that has requests enough for them."""
    found: list[float] = []
    for rows in measured.groupby("load").indices.values():
        for name, error in errors_of_statistics(measured.iloc[rows], simulated.iloc[rows]).items():
            if len(rows) * _TAILS.get(name.partition(" ")[2], 1.0) >= _FEWEST:
                found.append(error)
    return found


def errors_of_statistics(measured: pd.DataFrame, simulated: pd.DataFrame) -> dict[str, float]:
    """The relative errors of all statistics that were measured and are not 0, such as `ttft p99`."""
    found = statistics(simulated)
    wanted = {key: value for key, value in statistics(measured).items() if key[0] in _FITTED and value > 0}
    return {" ".join(key): found[key] / value - 1 for key, value in wanted.items()}


def _latencies(config: RunConfig, system: System, run: MeasuredRun) -> Latencies:
    rows, latency_from = part_of(run.requests, config.calibration.part), config.validation.latency_from
    measured = with_latencies(run.requests, latency_from).iloc[rows]
    kept, asynchronous = _kept(system), system.scheduler.async_scheduling

    def latencies(constants: Mapping[str, float]) -> tuple[pd.DataFrame, pd.DataFrame]:
        arrivals = make_arrivals(run.trace, config.arrival, np.random.default_rng(config.seed))
        values = {**kept, **constants}
        fleet = FleetSystem.alone(system.with_front_end(values))
        engine = SimulatedEngine(fleet, run.trace, arrivals, system.cost_model(values))
        engine.run()
        recorded = engine.record.tables(run.trace, engine.unfinished())
        requests = simulated_requests(recorded.requests, recorded.steps, latency_from, asynchronous=asynchronous)
        simulated = requests.iloc[rows]
        wanted, served = (table["num_output_tokens"].to_numpy() for table in (measured, simulated))
        if unserved := int((wanted != served).sum()):  # with any constants, so no fit is possible
            raise ConfigError(
                f"task=calibrate: {unserved} of {len(measured)} requests that were served in the measured run are "
                "refused or cut short in the simulation; check the model, the KV pool and max_model_len"
            )
        return measured, simulated

    return latencies


def _of_steps(system: System, run: MeasuredRun, part: Part) -> Objective:
    if run.own is None:
        raise ConfigError(
            f"calibration.objective=steps: {run.source} does not record step times, runs of our own engine do; use "
            "calibration.objective=statistics"
        )
    kept = _kept(system)

    def replay(constants: Mapping[str, float]) -> StepReplay:
        return replay_steps(run, system, system.cost_model({**kept, **constants}), part)

    def misfit(constants: Mapping[str, float]) -> float:
        return _rms(replay(constants).steps)

    def errors(constants: Mapping[str, float]) -> dict[str, float]:
        return {f"{kind} steps, RMS": _rms(steps) for kind, steps in replay(constants).steps.groupby("kind")}

    first = replay({})  # the plans of a replay do not depend on the constants
    count, different = len(first.steps), first.first_difference
    same = "" if different is None else f"plans are as measured up to step {different:,} of {first.num_steps:,} only: "
    if not count:
        raise ConfigError(f"calibration.part={part}: {same}no steps to fit to; choose calibration.objective=statistics")
    warnings = (f"{same}fitted to the {count:,} steps of part={part} among them",) if same else ()
    return Objective("RMS relative error of step times, weighted by time", misfit, errors, count, warnings)


def _rms(steps: pd.DataFrame) -> float:
    """Root mean square of the relative errors of step times, weighted by measured time."""
    measured, predicted = steps["measured"].to_numpy(), steps["predicted"].to_numpy()
    return float(np.sqrt(np.average((predicted / measured - 1) ** 2, weights=measured)))


def _kept(system: System) -> dict[str, float]:
    return dict(system.calibration.constants) if system.calibration else {}
