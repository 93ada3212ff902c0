"""How far off is the simulation of an early vLLM by four constants, which were fitted to its recovered steps?

The fits are stored in docs/fidelity/distserve; docs/fidelity.md says how they were made.
"""

from __future__ import annotations

from pathlib import Path

from experiments.board.published_runs import DISTSERVE_POOL, DISTSERVE_RATES, distserve_settings
from experiments.fidelity.lab import Lab, print_errors


def distserve(lab: Lab, data: Path) -> None:
    """OPT-13B: constants of the steps at 1 request/s, with which the other rates are predicted."""
    settings = {rate: distserve_settings(data, rate) for rate in DISTSERVE_RATES}
    fitted = lab.figures / "constants.yaml"
    use = f"cost.calibration={fitted}"
    scored = {rate: lab.validate(rate, *settings[rate], use, figures=True) for rate in DISTSERVE_RATES}
    print_errors("requests and requests/s; constants fitted on the first", scored)
    own = {}
    for rate in DISTSERVE_RATES[1:]:  # the best that the form of the model can do: constants of each run itself
        constants = lab.figures / f"own_{rate}.yaml"
        own[rate] = lab.validate(f"own_{rate}", *settings[rate], f"cost.calibration={constants}")
    print_errors("the same, constants fitted on each run itself", own)
    crowded = {"predicted": scored["300-3"]}
    changes = {"true_pool": (1.0, [f"num_blocks={DISTSERVE_POOL}"])}
    changes |= {f"{factor}_times_as_long": (factor, []) for factor in (0.99, 1.01, 1.02)}
    for name, (factor, more) in changes.items():
        constants = lab.scaled(fitted, factor)
        crowded[name] = lab.validate(f"300-3_{name}", *settings["300-3"], f"cost.calibration={constants}", *more)
    print_errors("3 requests/s, which queue for the KV pool: of its true size, and steps longer or shorter", crowded)
    lab.write()
