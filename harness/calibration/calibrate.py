"""task=calibrate: fits the few named constants of a cost model to one measured run, and says to which part of it.

What is minimised is `calibration.objective`:

    statistics  root mean square of the relative errors of TTFT, TPOT and E2EL x mean, median, p90, p95, p99
    requests    mean of the absolute errors of single requests' TTFT and decode times, relative to their measured means
    steps       of our own engine, whose step times are known: root mean square of the relative errors of the single
                steps, weighted by their measured times (with `validation.retimed`, the medians of their executions,
                or the fastest with cost.statistic=fastest); the measured plans are priced one by one, at the same. Of a
                log of vLLM: sum of the absolute errors of the times between its known moments, relative to their sum,
                for the steps recovered from it (with scheduler=vllm these are found with the prices before the fit)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from experiments.recovery.recovered_run import recover
from experiments.recovery.step_search import priced_by
from harness.calibration.fit import Fit, minimise
from harness.config import RunConfig
from harness.config.validation import StepStatistic
from harness.errors import ConfigError
from harness.measured import MeasuredRun
from harness.measured.measured_run import with_latencies
from harness.results.tables import CALIBRATION, command_line
from harness.runs import fitted as calibration
from harness.runs.fitted import Constant
from harness.runs.simulated import SimulatedEngine, at_statistic, cost_model
from harness.validation.metrics import part_of, statistics
from harness.validation.settings import different_settings
from harness.validation.steps import StepReplay, replay_steps
from harness.validation.validate import load_run, simulated_requests, simulation_config
from harness.workload.arrivals import make_arrivals
from simulator.costs.profiled import ProfiledCost

Misfit = Callable[[Mapping[str, float]], float]


class Objective(NamedTuple):
    """What is minimised: in words, and the misfit of some constants; over how many steps, where it is over steps, and
    what to beware of."""

    what: str
    misfit: Misfit
    num_steps: int | None = None
    warnings: tuple[str, ...] = ()


_FITTED = ("ttft", "tpot", "e2el")
_PRIOR = 3e-3  # misfit, as the objectives count it, that a constant one width from its default must save


def calibrate(config: RunConfig, output_dir: Path) -> dict[str, Any]:
    """Fit as `config.calibration` says, leave calibration.yaml in `output_dir` and return its content.

    Raises:
        TwinServeError: the measured run or the configuration cannot be used.
    """
    console = Console()
    run = load_run(config)
    config = simulation_config(config, run)
    constants = _chosen(config)
    part = config.calibration.part
    objective = _objective(config, run)
    for warning in [*_warnings(config, run), *objective.warnings]:
        console.print(Text(f"! {warning}", style="yellow"), soft_wrap=True)
    with _progress(config, console) as report:
        fit = minimise(
            _with_prior(objective.misfit, _known(config)),
            constants,
            config.calibration.max_evaluations,
            report,
        )
    misfit_before = objective.misfit({name: constant.default for name, constant in constants.items()})
    misfit_after = objective.misfit(fit.values)
    document = {
        "constants": _others(config) | fit.values,
        "cost": config.cost.kind,
        "fitted_on": {
            "measured": f"{run.kind}:{run.source}",
            "engine": run.engine,
            "data_sha256": run.data_sha256(),
            "requests_sha256": run.requests_sha256(),
            **calibration.system_of(config),
            "part": part,
            "num_requests": len(run.requests.iloc[part_of(len(run.requests), part)]),
            "latency_from": config.validation.latency_from,
            "num_steps": objective.num_steps,
            "step_executions": len(run.own.executions()) if run.own else None,
        },
        "kept": _kept(config, fit.values),
        "objective": {
            "minimised": f"{objective.what}, in quadrature with the prior of the constants",
            "widths": {name: constant.width for name, constant in constants.items()},
            "before": misfit_before,
            "after": misfit_after,
            "evaluations": fit.num_evaluations,
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(),
    }
    calibration.write(output_dir / CALIBRATION, document)
    _print(console, constants, fit)
    text = f"\n{objective.what}: {misfit_before:.2%} before, {misfit_after:.2%} after {fit.num_evaluations} evaluations"
    console.print(Text(text), soft_wrap=True)
    console.print(f"constants: {output_dir / CALIBRATION}", highlight=False, soft_wrap=True)
    return document


def _known(config: RunConfig) -> dict[str, Constant]:
    """The constants of the cost model, with the widths that the configuration gives them."""
    known = calibration.constants_of(config)
    for name, width in (config.calibration.widths or {}).items():
        if name not in known:
            raise ConfigError(f"calibration.widths: cost={config.cost.kind} has no {name!r} ({', '.join(known)})")
        known[name] = known[name]._replace(width=width)
    return known


def _chosen(config: RunConfig) -> dict[str, Constant]:
    """The constants to fit, starting from those of an earlier calibration if there is one."""
    known = _known(config)
    fitted = calibration.configured(config)
    for name, value in (fitted.constants if fitted else {}).items():
        known[name] = known[name]._replace(default=value)
    cost = cost_model(config)
    unused = cost.unused_constants if isinstance(cost, ProfiledCost) else frozenset()
    names = config.calibration.constants or tuple(name for name in known if name not in unused)
    for name in names:
        if name not in known:
            raise ConfigError(f"calibration.constants: cost={config.cost.kind} has no {name!r} ({', '.join(known)})")
        if name in unused:
            raise ConfigError(
                f"calibration.constants: {name} has no effect with this profile, which needs no such constant"
            )
    if not names:
        raise ConfigError(f"cost={config.cost.kind}: has no constants to fit")
    return {name: known[name] for name in names}


def _others(config: RunConfig) -> dict[str, float]:
    """Constants of an earlier calibration, which stay as they are unless they are fitted again."""
    fitted = calibration.configured(config)
    return dict(fitted.constants) if fitted else {}


def _warnings(config: RunConfig, run: MeasuredRun) -> list[str]:
    """What differs between the measured run, the simulation, and an earlier calibration."""
    fitted = calibration.configured(config)
    others = fitted.other_systems(config) if fitted else []
    return [*run.notes, *different_settings(run.settings, config), *others]


def _kept(config: RunConfig, refitted: Mapping[str, float]) -> list[dict[str, Any]]:
    """What the constants that are kept from an earlier calibration were fitted on."""
    fitted = calibration.configured(config)
    if fitted is None or not set(fitted.constants) - set(refitted):
        return []
    return [dict(data) for data in (fitted.fitted_on, *fitted.kept)]


def _with_prior(misfit: Misfit, known: Mapping[str, Constant]) -> Misfit:
    """`misfit` and, in quadrature, how far the constants are from the cost model's own, in their widths.

    So what the run hardly determines stays near what the model says.
    """

    def penalised(constants: Mapping[str, float]) -> float:
        distances = [(value - known[name].default) / known[name].width for name, value in constants.items()]
        return math.hypot(misfit(constants), *(_PRIOR * distance for distance in distances))

    return penalised


def _objective(config: RunConfig, run: MeasuredRun) -> Objective:
    """What `calibration.objective` names.

    Raises:
        ConfigError: step times are asked for, and none is known of a step that is planned as measured.
        LogError: they are asked for, and cannot be recovered.
    """
    name = config.calibration.objective or ("statistics" if run.own is None else "steps")
    if name == "steps":
        return _step_objective(config, run) if run.own else _recovered_objective(config, run)
    if config.validation.retimed:
        raise ConfigError(f"validation.retimed: has no effect with calibration.objective={name}")
    what, misfit = _LATENCY_MISFITS[name]
    return Objective(what, _latency_misfit(config, run, misfit))


def _latency_misfit(
    config: RunConfig, run: MeasuredRun, compare: Callable[[pd.DataFrame, pd.DataFrame], float]
) -> Misfit:
    rows = part_of(len(run.requests), config.calibration.part)
    measured = with_latencies(run.requests, config.validation.latency_from).iloc[rows]
    others = _others(config)

    def misfit(constants: Mapping[str, float]) -> float:
        arrivals = make_arrivals(run.trace, config.arrival, np.random.default_rng(config.seed))
        engine = SimulatedEngine(config, run.trace, arrivals, cost_model(config, {**others, **constants}))
        engine.run()
        recorded = engine.recorder.tables(run.trace, engine.unfinished())
        simulated = simulated_requests(recorded.requests, recorded.steps, config).iloc[rows]
        wanted, served = (table["num_output_tokens"].to_numpy() for table in (measured, simulated))
        if unserved := int((wanted != served).sum()):  # whatever the constants: what is left are other requests
            raise ConfigError(
                f"task=calibrate: {unserved} of {len(measured)} requests that were served in the measured run are "
                "refused or cut short in the simulation; check the model, the KV pool and max_model_len"
            )
        return compare(measured, simulated)

    return misfit


def misfit_of_statistics(measured: pd.DataFrame, simulated: pd.DataFrame) -> float:
    """Root mean square of the relative errors of all statistics that were measured and are not 0."""
    found = statistics(simulated)
    wanted = {key: value for key, value in statistics(measured).items() if key[0] in _FITTED and value > 0}
    errors = np.array([found[key] / value - 1 for key, value in wanted.items()])
    return float(np.sqrt(np.mean(errors**2)))


def misfit_of_requests(measured: pd.DataFrame, simulated: pd.DataFrame) -> float:
    """Mean of |error| / mean measured of TTFT and, unless it is 0 throughout, of the time from first to last token.

    Absolute and not squared errors, as a few requests are off by a whole prompt step.
    """
    misfits = []
    for until, since in (("ttft", None), ("e2el", "ttft")):
        theirs, ours = (
            (table[until] - (table[since] if since else 0.0)).to_numpy(np.float64) for table in (measured, simulated)
        )
        if theirs.any():
            misfits.append(float(np.abs(ours - theirs).mean() / theirs.mean()))
    return math.fsum(misfits) / len(misfits)


_LATENCY_MISFITS: dict[str, tuple[str, Callable[[pd.DataFrame, pd.DataFrame], float]]] = {
    "statistics": ("RMS relative error of TTFT, TPOT, E2EL statistics", misfit_of_statistics),
    "requests": ("relative mean absolute error of requests' TTFT and decode times", misfit_of_requests),
}


def _step_objective(config: RunConfig, run: MeasuredRun) -> Objective:
    others, part = _others(config), config.calibration.part
    statistic: StepStatistic = "fastest" if getattr(config.cost, "statistic", None) == "fastest" else "median"
    priced = at_statistic(config, statistic)

    def replay(constants: Mapping[str, float]) -> StepReplay:
        return replay_steps(run, config, cost_model(priced, {**others, **constants}), part, statistic)

    def misfit(constants: Mapping[str, float]) -> float:
        steps = replay(constants).steps
        measured, predicted = steps["measured"].to_numpy(), steps["predicted"].to_numpy()
        return float(np.sqrt(np.average((predicted / measured - 1) ** 2, weights=measured)))

    first = replay({})  # which steps are planned as measured does not depend on what they are said to cost
    count, different = len(first.steps), first.first_difference
    same = "" if different is None else f"plans are as measured up to step {different:,} of {first.num_steps:,} only: "
    if not count:
        raise ConfigError(f"calibration.part={part}: {same}no steps to fit to; choose calibration.objective=requests")
    warnings = (f"{same}fitted to the {count:,} steps of part={part} among them",) if same else ()
    return Objective("RMS relative error of step times, weighted by time", misfit, count, warnings)


def _recovered_objective(config: RunConfig, run: MeasuredRun) -> Objective:
    others, part = _others(config), config.calibration.part
    recovered = recover(config, run)

    def misfit(constants: Mapping[str, float]) -> float:
        return recovered.misfit(priced_by(cost_model(config, {**others, **constants})), part)

    count = sum(len(span.steps) for span in recovered.of_part(part))
    if not count:
        raise ConfigError(f"calibration.part={part}: no recovered steps to fit to; choose calibration.part=all")
    return Objective("relative absolute error of recovered steps", misfit, count)


@contextmanager
def _progress(config: RunConfig, console: Console) -> Iterator[Callable[[int, float], None]]:
    """A bar that counts evaluations and shows the lowest error so far."""
    if not config.progress or not console.is_terminal:
        yield lambda count, best: None
        return
    columns = (
        TextColumn("evaluations"), BarColumn(bar_width=None), MofNCompleteColumn(), TextColumn("{task.fields[best]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=config.calibration.max_evaluations, best="")
        yield lambda count, best: bar.update(task, completed=count, best=f"lowest error {best:.3%}")


def _print(console: Console, constants: Mapping[str, Constant], fit: Fit) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("constant", "before", "fitted", "limits"):
        table.add_column(name, justify="left" if name == "constant" else "right", no_wrap=True)
    for name, (default, low, high, _) in constants.items():
        table.add_row(name, f"{default:.4g}", f"{fit.values[name]:.4g}", f"{low:g} to {high:g}")
    console.print(table)
    for name, (default, low, high, _) in constants.items():
        distance = min(abs(fit.values[name] - limit) for limit in (low, high) if limit != default)
        if distance < 1e-3 * (high - low):
            console.print(Text(f"! {name} is at its limit", style="yellow"), soft_wrap=True)
