"""task=calibrate: fits the named constants of a cost model to a measured run and writes a calibration file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from harness.calibration.minimisation import Fit, Residuals, minimise
from harness.calibration.objective import Misfit, make_objective
from harness.config import RunConfig
from harness.config.schema.tasks.validation import CalibrationConfig, LatencyFrom, Part
from harness.engines.resolving import calibration_files
from harness.engines.resolving.system import resolve
from harness.errors import ConfigError
from harness.figures import write_charts
from harness.figures.charts.calibration import calibration_chart
from harness.measured import MeasuredRun
from harness.results.stored.environment import command_line
from harness.results.stored.files import CALIBRATION
from harness.results.terminal import print_line
from harness.validation.error_statistics import part_of
from harness.validation.settings import different_settings
from harness.validation.simulated_run import load_run, simulation_config
from simulator.calibration import Calibration
from simulator.costs.constants import ONLY_IF_NAMED, Constant
from simulator.costs.profiled import ProfiledCost
from simulator.system import System

_AT_LIMIT = 1e-3  # of a constant's range
_PRIOR = 3e-3  # a constant one width from its default must reduce the misfit by this much


def calibrate(config: RunConfig, output_dir: Path) -> dict[str, Any]:
    """Fit as `config.calibration` says, write calibration.yaml to `output_dir` and return its content.

    Raises:
        TwinServeError: the measured run or the configuration cannot be used.
    """
    run = load_run(config.validation)
    config = simulation_config(config, run)
    system = resolve(config)
    earlier, constants = system.calibration, chosen_constants(system, config.calibration)
    objective = make_objective(config, system, run)
    console = Console()
    for warning in [*run.notes, *different_settings(run.settings, config), *_misfits(system), *objective.warnings]:
        print_line(console, f"! {warning}", "yellow")
    limit = config.calibration.max_evaluations
    with _progress(console, limit, is_shown=config.progress and console.is_terminal) as report:
        known = _known(system, config.calibration)
        residuals = None if objective.residuals is None else _with_distances(objective.residuals, known)
        fit = minimise(_with_prior(objective.misfit, known), constants, limit, report, residuals)
    start = {name: constant.default for name, constant in constants.items()}
    before = objective.misfit(start)
    after = objective.misfit(fit.values)
    limits = at_limits(constants, fit.values)
    document = {
        "constants": (dict(earlier.constants) if earlier else {}) | fit.values,
        "cost": system.cost.kind,
        "fitted_on": {
            **_data(run, config.calibration.part, config.validation.latency_from, objective.num_steps),
            **system.fitted_for(),
        },
        "kept": _kept(earlier, fit.values),
        "objective": {
            "minimised": f"{objective.what}, in quadrature with the prior of the constants",
            "widths": {name: constant.width for name, constant in constants.items()},
            "at_limit": limits,
            "before": before,
            "after": after,
            "evaluations": fit.num_evaluations,
            "start": start,
            "limits": {name: [constant.low, constant.high] for name, constant in constants.items()},
            "errors_before": objective.errors(start),
            "errors_after": objective.errors(fit.values),
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(),
    }
    calibration_files.write(output_dir / CALIBRATION, document)
    if config.plots:
        write_charts({"calibration": calibration_chart(document, config.plot)}, output_dir, config.plot)
    _print(console, constants, fit, limits)
    text = f"\n{objective.what}: {before:.2%} before, {after:.2%} after {fit.num_evaluations} evaluations"
    print_line(console, text)
    console.print(f"constants: {output_dir / CALIBRATION}", highlight=False, soft_wrap=True)
    return document


def chosen_constants(system: System, settings: CalibrationConfig) -> dict[str, Constant]:
    """The constants to fit, starting from those of the system's calibration if it has one.

    Raises:
        ConfigError: the configuration names a constant that the cost model lacks, or that has no effect.
    """
    known, start = _known(system, settings), system.calibration.constants if system.calibration else {}
    cost = system.cost_model()
    unused = cost.unused_constants if isinstance(cost, ProfiledCost) else frozenset()
    names = settings.constants or tuple(name for name in known if name not in unused and name not in ONLY_IF_NAMED)
    for name in names:
        if name not in known:
            raise ConfigError(f"calibration.constants: cost={system.cost.kind} has no {name!r} ({', '.join(known)})")
        if name in unused:
            raise ConfigError(
                f"calibration.constants: {name} has no effect with this profile, which needs no such constant"
            )
    if not names:
        raise ConfigError(f"cost={system.cost.kind}: has no constants to fit")
    return {name: known[name]._replace(default=start.get(name, known[name].default)) for name in names}


def _known(system: System, settings: CalibrationConfig) -> dict[str, Constant]:
    """The constants of the cost model, with the widths that the configuration gives them."""
    known = system.constants()
    for name, width in (settings.widths or {}).items():
        if name not in known:
            raise ConfigError(f"calibration.widths: cost={system.cost.kind} has no {name!r} ({', '.join(known)})")
        known[name] = known[name]._replace(width=width)
    return known


def _data(run: MeasuredRun, part: Part, latency_from: LatencyFrom, num_steps: int | None) -> dict[str, Any]:
    """What identifies the measured data of a fit."""
    return {
        "measured": f"{run.kind}:{run.source}",
        "engine": run.engine,
        "data_sha256": run.data_sha256(),
        "requests_sha256": run.requests_sha256(),
        "part": part,
        "num_requests": len(part_of(run.requests, part)),
        "latency_from": latency_from,
        "num_steps": num_steps,
    }


def _misfits(system: System) -> list[str]:
    """One line for each fit of the system's calibration that was made for another system."""
    return system.calibration.other_systems(system.fitted_for()) if system.calibration else []


def _kept(earlier: Calibration | None, refitted: Mapping[str, float]) -> list[dict[str, Any]]:
    """The runs to which the kept constants of an earlier calibration were fitted."""
    if earlier is None or not set(earlier.constants) - set(refitted):
        return []
    return [dict(data) for data in (earlier.fitted_on, *earlier.kept)]


def _with_prior(misfit: Misfit, known: Mapping[str, Constant]) -> Misfit:
    """`misfit` and, in quadrature, the distances of the constants from the cost model's own defaults, in widths.

    So a constant that the run hardly determines stays near its default.
    """

    return lambda constants: math.hypot(misfit(constants), *_distances(constants, known))


def _with_distances(residuals: Residuals, known: Mapping[str, Constant]) -> Residuals:
    """Residuals with the distances from known constants appended: the squared norm is what `_with_prior` adds up."""
    return lambda constants: np.concatenate([residuals(constants), _distances(constants, known)])


def _distances(constants: Mapping[str, float], known: Mapping[str, Constant]) -> list[float]:
    return [_PRIOR * (value - known[name].default) / known[name].width for name, value in constants.items()]


@contextmanager
def _progress(console: Console, limit: int, *, is_shown: bool) -> Iterator[Callable[[int, float], None]]:
    """A bar that counts evaluations and shows the lowest error so far."""
    if not is_shown:
        yield lambda count, best: None
        return
    columns = (
        TextColumn("evaluations"), BarColumn(bar_width=None), MofNCompleteColumn(), TextColumn("{task.fields[best]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=limit, best="")
        yield lambda count, best: bar.update(task, completed=count, best=f"lowest error {best:.3%}")


def at_limits(constants: Mapping[str, Constant], values: Mapping[str, float]) -> dict[str, str]:
    """The constants that ended within a thousandth of the range of a limit, each with the limit in words."""
    found = {}
    for name, (default, low, high, _) in constants.items():
        for side, limit in (("lower", low), ("upper", high)):
            if abs(values[name] - limit) < _AT_LIMIT * (high - low):
                began = ", where the fit began" if abs(default - limit) < _AT_LIMIT * (high - low) else ""
                found[name] = f"{side} limit {limit:g}{began}"
    return found


def _print(console: Console, constants: Mapping[str, Constant], fit: Fit, limits: Mapping[str, str]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("constant", "before", "fitted", "limits"):
        table.add_column(name, justify="left" if name == "constant" else "right", no_wrap=True)
    for name, (default, low, high, _) in constants.items():
        table.add_row(name, f"{default:.4g}", f"{fit.values[name]:.4g}", f"{low:g} to {high:g}")
    console.print(table)
    for name, limit in limits.items():
        text = f"! {name} is at its {limit}: the cost model has no value that fits better, or the run does not tell it"
        print_line(console, text, "yellow")
