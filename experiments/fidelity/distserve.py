"""How far off is the simulation of an early vLLM by four constants that are fitted to recovered steps?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments import command_of
from experiments.fidelity.lab import Lab, print_errors
from experiments.published_runs import DISTSERVE_POOL, DISTSERVE_RATES, distserve_settings
from experiments.recovery.constants import fit_to_recovered_steps, recovered
from experiments.recovery.recovered_run import summary
from experiments.recovery.steps import priced_by


def distserve(lab: Lab, data: Path) -> None:
    """OPT-13B: constants fitted to the recovered steps at 1 request/s; the other rates are predicted with them."""
    settings = {rate: distserve_settings(data, rate) for rate in DISTSERVE_RATES}
    fitted = fit(lab, "constants", settings["100-1"])
    use = f"cost.calibration={fitted}"
    scored = {rate: lab.validate(rate, *settings[rate], use, figures=True) for rate in DISTSERVE_RATES}
    print_errors("requests and requests/s; constants fitted on the first", scored)
    own = {}
    for rate in DISTSERVE_RATES[1:]:  # the best that the form of the model can do: constants of each run itself
        constants = fit(lab, f"own_{rate}", settings[rate])
        own[rate] = lab.validate(f"own_{rate}", *settings[rate], f"cost.calibration={constants}")
    print_errors("the same, constants fitted on each run itself", own)
    crowded = {"predicted": scored["300-3"]}
    changes = {"true_pool": (1.0, [f"num_blocks={DISTSERVE_POOL}"])}
    changes |= {f"{factor}_times_as_long": (factor, []) for factor in (0.99, 1.01, 1.02)}
    for name, (factor, more) in changes.items():
        constants = lab.scaled(fitted, factor)
        crowded[name] = lab.validate(f"300-3_{name}", *settings["300-3"], f"cost.calibration={constants}", *more)
    print_errors("3 requests/s, which queue for the KV pool: of its true size, and steps longer or shorter", crowded)
    lab.write(recovered_steps={rate: recovered_steps(*settings[rate], use) for rate in DISTSERVE_RATES})


def fit(lab: Lab, name: str, settings: list[str]) -> Path:
    """Fit the cost model to the recovered steps of a run; the file is kept beside the figures."""
    how = ["calibration.max_evaluations=1000", "progress=false"]
    path = fit_to_recovered_steps(lab.scratch / name, command_of("experiments.fidelity"), *how, *settings)
    return lab.keep(path, name)


def recovered_steps(*settings: str) -> dict[str, Any]:
    """The errors of single steps at the prices of `settings`."""
    system, _, found = recovered(*settings)
    return summary(found, priced_by(system.cost_model()), "all")
