"""Calibration files: constants of a cost model that task=calibrate fitted, and the measured runs they were fitted to.

constants     name: value
cost          the cost model to which the constants belong
fitted_on     the measured run, hashes of its data and of its requests' lengths, part, number of requests and of steps;
              the simulated model, device, profile and number of ranks
kept          `fitted_on` of earlier fits whose constants were kept
objective     what was minimised, its value before and after, number of evaluations; widths of the constants, and which
              of them ended at a limit
date, command
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engine.documents import errors_as, read_yaml, yaml_text
from harness.errors import ConfigError
from harness.results.stored.files import CALIBRATION, write_whole
from simulator.calibration import Calibration, same_setting
from simulator.quantities import RANGES

_FITTED_ON = {"measured": str, "data_sha256": str, "part": str, "num_requests": int}


def check_device(calibration: Calibration, device: str) -> None:
    """Raises ConfigError where a constant was fitted on another device, of whose machine it is a correction."""
    for data in calibration.fits:
        if "device" in data and not same_setting("device", data["device"], device):
            raise ConfigError(
                f"cost.calibration={str(calibration.path)!r}: fitted on {data['device']}, simulated is {device}; "
                "fitted constants correct one machine, and on another may be worse than none: fit there "
                "(task=calibrate), leave them out, or take them with cost.other_device=true"
            )


def check(calibration: Calibration, kind: str, known: Iterable[str]) -> None:
    """Raises ConfigError unless it belongs to the cost model `kind`, which has constants of the names `known`, and its
    constants are in their ranges."""
    key = f"cost.calibration={str(calibration.path)!r}"
    if calibration.cost != kind or set(calibration.constants) - set(known):
        raise ConfigError(
            f"{key}: fitted for cost={calibration.cost} with {', '.join(calibration.constants)}; "
            f"cost={kind} has {', '.join(known)}"
        )
    for name, value in calibration.constants.items():
        if not RANGES[name].holds(value):
            raise ConfigError(f"{key}: constants.{name}={value:g}: must be {RANGES[name]}")


def read(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        ConfigError: the file cannot be read, or is no calibration file.
    """
    with errors_as(ConfigError, f"cost.calibration={str(path)!r}"):
        document = read_yaml(path, numbers="any")  # widths may be infinite
    values = document if isinstance(document, dict) else {}
    constants, fitted_on, kept = (values.get(name) or {} for name in ("constants", "fitted_on", "kept"))
    kept = kept or []
    if (
        not isinstance(constants, dict)
        or not isinstance(kept, list)
        or not all(map(_is_fit, (fitted_on, *kept)))
        or not all(type(name) is str and type(value) in (int, float) for name, value in constants.items())
    ):
        raise ConfigError(
            f"cost.calibration={str(path)!r}: not a {CALIBRATION} of task=calibrate: needs constants (numbers) and "
            f"fitted_on ({', '.join(_FITTED_ON)})"
        )
    return Calibration(
        path, str(values.get("cost")), {name: float(value) for name, value in constants.items()}, fitted_on, tuple(kept)
    )


def _is_fit(data: Any) -> bool:
    """Whether `data` says to what constants were fitted."""
    return (
        isinstance(data, dict)
        and all(type(data.get(name)) is kind for name, kind in _FITTED_ON.items())
        and not any(isinstance(value, float) and not math.isfinite(value) for value in data.values())
    )


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a calibration file, whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(yaml_text(dict(document)), encoding="utf-8"))
