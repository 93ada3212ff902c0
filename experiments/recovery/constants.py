"""Constants of a cost model, fitted to recovered steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments import composed
from experiments.recovery.recovered_run import RecoveredRun, recover
from experiments.recovery.request_log import LogError
from experiments.recovery.steps import priced_by
from harness.calibration.calibrate import fit_constants
from harness.calibration.objective import Objective
from harness.config.validation import Part
from harness.measured import MeasuredRun
from harness.results.files import CALIBRATION
from harness.runs.system import resolve
from harness.validation.simulation import load_run, simulation_config
from simulator.system import System


def recovered(*overrides: str) -> tuple[System, MeasuredRun, RecoveredRun]:
    """The run that `overrides` of run.py name, with its recovered steps and the system that simulates it."""
    config = composed("task=validate", *overrides)
    run = load_run(config.validation)
    system = resolve(simulation_config(config, run))
    return system, run, recover(system, run)


def recovered_objective(system: System, found: RecoveredRun, part: Part) -> Objective:
    """The relative absolute error of the recovered spans of a part of the requests.

    Raises:
        LogError: no span belongs to the part.
    """
    kept = system.calibration.constants if system.calibration else {}

    def misfit(constants: Mapping[str, float]) -> float:
        return found.misfit(priced_by(system.cost_model({**kept, **constants})), part)

    count = sum(len(span.steps) for span in found.of_part(part))
    if not count:
        raise LogError(f"part={part}: no recovered steps to fit to")
    return Objective("relative absolute error of recovered steps", misfit, lambda each: {"steps": misfit(each)}, count)


def fit_to_recovered_steps(folder: Path, command: str, *overrides: str) -> Path:
    """Fit the cost model that `overrides` of run.py name to the recovered steps of their run, as task=calibrate fits
    other objectives; returns the calibration file, which is written to `folder` and names `command`."""
    config = composed("task=calibrate", *overrides)
    run = load_run(config.validation)
    config = simulation_config(config, run)
    system = resolve(config)
    found = recover(system, run)
    objective = recovered_objective(system, found, config.calibration.part)
    folder.mkdir(parents=True, exist_ok=True)
    fit_constants(config, system, run, objective, folder, command)
    return folder / CALIBRATION
